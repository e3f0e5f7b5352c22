package client_test

import (
	"errors"
	"testing"

	"github.com/drowse-dev/drowse/client"
)

func TestDoctor(t *testing.T) {
	c, _ := newServer(t)
	ok, findings, err := client.Doctor(t.Context(), c)
	if err != nil || !ok || len(findings) != 2 {
		t.Fatalf("found %v %+v, %v", ok, findings, err)
	}
	if f := findings[0]; !f.OK || !f.Required || f.Name == "" || f.Detail == "" || f.Remedy != "" {
		t.Errorf("the first is %+v", f)
	}
	if f := findings[1]; f.OK || f.Required || f.Remedy == "" {
		t.Errorf("the second is %+v", f)
	}
	made, err := c.CreateKey(t.Context(), client.KeyOptions{Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	full, err := client.New(client.Options{URL: c.URL(), APIKey: made.Text})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.Doctor(t.Context(), full); !errors.Is(err, client.ErrForbidden) {
		t.Errorf("for a key of role full: %v, want ErrForbidden", err)
	}
}
