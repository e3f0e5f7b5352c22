// Command use is a program against the generated client. It is compiled, not run.
package main

import (
	"context"
	"fmt"
	"net/http"

	"example.com/drowse-client/drowse"
)

func use(ctx context.Context, url, key string) error {
	withKey := drowse.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("X-API-Key", key)
		return nil
	})
	c, err := drowse.NewClientWithResponses(url, withKey)
	if err != nil {
		return err
	}
	timeout, wakes := float32(600), true
	onTimeout := drowse.CreateSandboxJSONBodyOnTimeoutPause
	created, err := c.CreateSandboxWithResponse(ctx, nil, drowse.CreateSandboxJSONRequestBody{
		TimeoutSeconds: &timeout, OnTimeout: &onTimeout, AutoResume: &wakes, Metadata: &map[string]string{"team": "red"},
	})
	if err != nil {
		return err
	}
	if created.JSON201 == nil {
		return fmt.Errorf("%s: %s", created.JSONDefault.Error.Code, created.JSONDefault.Error.Message)
	}
	sandbox := *created.JSON201
	if _, err := c.PauseSandboxWithResponse(ctx, sandbox.Id, drowse.PauseSandboxJSONRequestBody{}); err != nil {
		return err
	}
	if _, err := c.PatchSandboxWithResponse(ctx, sandbox.Id, drowse.PatchSandboxJSONRequestBody{Metadata: &map[string]string{"team": "blue"}}); err != nil {
		return err
	}
	list, err := c.ListSandboxesWithResponse(ctx, &drowse.ListSandboxesParams{})
	if err != nil {
		return err
	}
	for _, s := range list.JSON200.Sandboxes {
		fmt.Println(s.Id, s.State)
	}
	exported, err := c.ExportSandboxWithResponse(ctx, sandbox.Id)
	if err != nil {
		return err
	}
	fmt.Println(len(exported.Body))
	_, err = c.DeleteSandboxWithResponse(ctx, sandbox.Id)
	return err
}

func main() {
	if err := use(context.Background(), "http://127.0.0.1:3000", "key"); err != nil {
		panic(err)
	}
}
