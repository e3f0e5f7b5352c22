package mcp

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drowse-dev/drowse/client"
)

// tool is what an agent is told of a tool.
type tool struct {
	name, title string
	about       string
	reads       bool                // it changes nothing
	destroys    bool                // what it does cannot be undone
	repeats     bool                // a second call with the same arguments changes nothing more
	words       map[string][]string // what the strings of the input may be, where that is fixed
	least       map[string]float64  // the bounds of numbers of the input
	most        map[string]float64
}

// call is one call of a tool.
type call struct {
	*client.Client
	req *mcp.CallToolRequest
}

// named is the input of tools for one sandbox.
type named struct {
	Sandbox string `json:"sandbox" jsonschema:"id of the sandbox, as create_sandbox and list_sandboxes return it"`
}

func (n named) id() string { return n.Sandbox }

// result is what a tool returns besides its output.
type result struct {
	failed  bool // the output has an error in it
	content []mcp.Content
}

// add adds a tool whose output is all of its result.
func add[In, Out any](s *Server, t tool, f func(context.Context, call, In) (Out, error)) {
	addWith(s, t, func(ctx context.Context, c call, in In) (Out, result, error) {
		out, err := f(ctx, c, in)
		return out, result{}, err
	})
}

// addWith adds a tool. An error of f becomes what [failure] says of it.
func addWith[In, Out any](s *Server, t tool, f func(context.Context, call, In) (Out, result, error)) {
	handler := func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		s.calls.Add(1)
		defer s.calls.Done()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.ended, cancel)()
		c := call{s.clientOf(req), req}
		out, r, err := f(ctx, c, in)
		if err != nil {
			failed := c.explain(ctx, sandboxOf(in), err)
			allPlain(reflect.ValueOf(failed))
			return nil, out, failed
		}
		allPlain(reflect.ValueOf(&out))
		text, err := encode(out)
		if err != nil {
			return nil, out, err
		}
		// The text is the same JSON as the structured content, for clients that show
		// the model nothing else.
		content := append([]mcp.Content{&mcp.TextContent{Text: text}}, r.content...)
		return &mcp.CallToolResult{Content: content, IsError: r.failed}, out, nil
	}
	mcp.AddTool(s.sdk, t.wire(schemaOf[In](t), schemaOf[Out](tool{})), handler)
}

// clientOf returns the client of whoever makes a call.
func (s *Server) clientOf(req *mcp.CallToolRequest) *client.Client {
	if req.Extra != nil && req.Extra.TokenInfo != nil {
		return req.Extra.TokenInfo.Extra[extraClient].(*client.Client)
	}
	return s.client
}

func sandboxOf(in any) string {
	if n, ok := in.(interface{ id() string }); ok {
		return n.id()
	}
	return ""
}

func (t tool) wire(in, out *jsonschema.Schema) *mcp.Tool {
	return &mcp.Tool{
		Name: t.name, Title: t.title, Description: t.about, InputSchema: in, OutputSchema: out,
		Annotations: &mcp.ToolAnnotations{
			Title: t.title, ReadOnlyHint: t.reads, DestructiveHint: new(t.destroys), IdempotentHint: t.reads || t.repeats,
			OpenWorldHint: new(!t.reads),
		},
	}
}

// schemaOf describes a type. A list or map that is left out is not null: clients
// differ in what they make of more than one type.
func schemaOf[T any](t tool) *jsonschema.Schema {
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("internal error: describe %s: %v", reflect.TypeFor[T](), err))
	}
	single(schema)
	property := func(name string) *jsonschema.Schema {
		p := schema.Properties[name]
		if p == nil {
			panic(fmt.Sprintf("internal error: tool %s has no input %s", t.name, name))
		}
		return p
	}
	for name, words := range t.words {
		for _, word := range words {
			property(name).Enum = append(property(name).Enum, word)
		}
	}
	for name, n := range t.least {
		property(name).Minimum = new(n)
	}
	for name, n := range t.most {
		property(name).Maximum = new(n)
	}
	return schema
}

// single leaves every part of a schema with one type.
func single(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if types := slices.DeleteFunc(slices.Clone(s.Types), func(t string) bool { return t == "null" }); len(types) == 1 {
		s.Type, s.Types = types[0], nil
	}
	for _, p := range s.Properties {
		single(p)
	}
	single(s.Items)
	single(s.AdditionalProperties)
}
