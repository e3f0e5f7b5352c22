package mitos

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestResultOf: a result has the forms that are known, and those of "extra", of which
// there is a bounded number.
func TestResultOf(t *testing.T) {
	got := resultOf(event{Text: "42", Main: true}, []byte(`{"type":"result","text":"42","png":"aGk=","unknown":{"a":1},"extra":{"x/y":"z","x/json":{"a":[1]}},"is_main_result":true}`))
	want := resultView{Text: "42", Data: map[string][]byte{"text/plain": []byte("42"), "image/png": []byte("aGk="), "x/y": []byte("z"), "x/json": []byte(`{"a":[1]}`)}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, line := range []string{``, `null`, `[]`, `{"extra":[1]}`, `{"extra":{"a":`, `{"png"`, `{"png":}`} {
		if got := resultOf(event{}, []byte(line)); len(got.Data) > 0 {
			t.Errorf("%s: %q", line, got)
		}
	}
	var fields strings.Builder
	const n = 1000
	for i := range n {
		fmt.Fprintf(&fields, `"%x":1,`, i)
	}
	for _, line := range []string{`{` + fields.String() + `"png":"x"}`, `{"png":"x","extra":{` + fields.String() + `"x":1}}`} {
		got := resultOf(event{}, []byte(line))
		if len(got.Data) > maxMedia || string(got.Data["image/png"]) != "x" {
			t.Errorf("it has %d forms, png %q", len(got.Data), got.Data["image/png"])
		}
	}
}
