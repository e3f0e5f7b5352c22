package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// document is as much of an OpenAPI description as the SDKs are made of.
type document struct {
	Paths map[string]map[string]struct {
		RequestBody struct {
			Content map[string]struct{ Schema schema }
		} `json:"requestBody"`
	}
	Components struct{ Schemas map[string]schema }
}

type schema struct {
	Ref         string `json:"$ref"`
	Type        string
	Format      string
	Description string
	Enum        []string
	AnyOf       []schema
	Items       *schema
	Properties  map[string]schema
	Additional  any `json:"additionalProperties"`
	Required    []string
}

// model is an object that the SDKs have a type for.
type model struct {
	name, doc string
	first     string // the field that is an argument of its own in Python
	input     bool   // only sent: every field may be left out, and durations are what people write
	fields    []field
}

type field struct {
	name, doc string
	schema    schema
	required  bool
	null      bool
}

// answers are the components that get a type, and what it is called. What they
// refer to gets one too.
var answers = map[string]string{
	"Sandbox": "SandboxInfo", "Lifecycle": "Explanation", "Event": "Event", "Hold": "Hold", "Snapshot": "Snapshot", "Restore": "Restore",
	"Secret": "Secret", "ServiceInfo": "ServiceInfo", "Line": "LogLine", "Preview": "Preview", "Template": "Template", "Volume": "Volume",
}

// bodies are the requests that get a type for what can be asked for.
// Python has one of each as an argument of its own.
var bodies = []struct{ path, method, name, first, doc string }{
	{"/v1/sandboxes", "post", "CreateOptions", "template", "What a new sandbox is to be. All of it can be left out."},
	{"/v1/sandboxes/{id}", "patch", "ChangeOptions", "", "What is to change of a sandbox, running or paused."},
	{"/v1/sandboxes/{id}/snapshots", "post", "SnapshotOptions", "name", "What a snapshot is to be."},
	{"/v1/snapshots/{snapshot}", "patch", "SnapshotChange", "", "What is to change of a snapshot."},
	{"/v1/secrets/{secret}", "put", "SecretOptions", "", "Where the value of a secret goes."},
	{"/v1/sandboxes/{id}/previews", "post", "PreviewOptions", "port", "What a preview link is to be."},
}

// readModels returns the models, by name.
func readModels(doc document) ([]model, error) {
	found := map[string]model{}
	var add func(name string) error
	var follow func(s schema) error
	follow = func(s schema) error {
		if s.Ref != "" {
			return add(s.Ref[strings.LastIndex(s.Ref, "/")+1:])
		}
		for _, one := range s.AnyOf {
			if err := follow(one); err != nil {
				return err
			}
		}
		if s.Items != nil {
			return follow(*s.Items)
		}
		return nil
	}
	add = func(name string) error {
		if _, done := found[typeName(name)]; done {
			return nil
		}
		s, ok := doc.Components.Schemas[name]
		if !ok {
			return fmt.Errorf("%s has no component %s", description, name)
		}
		m := model{name: typeName(name), doc: s.Description, fields: fieldsOf(s)}
		found[m.name] = m
		for _, f := range m.fields {
			if err := follow(f.schema); err != nil {
				return err
			}
		}
		return nil
	}
	for name := range answers {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	for _, b := range bodies {
		s := doc.Paths[b.path][b.method].RequestBody.Content["application/json"].Schema
		if len(s.Properties) == 0 {
			return nil, fmt.Errorf("%s has no body of %s %s", description, b.method, b.path)
		}
		m := model{name: b.name, doc: b.doc, first: b.first, input: true, fields: fieldsOf(s)}
		found[m.name] = m
		for _, f := range m.fields {
			if err := follow(f.schema); err != nil {
				return nil, err
			}
		}
	}
	var list []model
	for _, name := range slices.Sorted(maps.Keys(found)) {
		list = append(list, found[name])
	}
	return list, nil
}

func typeName(component string) string {
	if name := answers[component]; name != "" {
		return name
	}
	return component
}

// secret are fields of answers that no type has: they are credentials, and types
// are for showing.
var secret = map[string]bool{"token": true, "trafficToken": true}

func fieldsOf(s schema) []field {
	var list []field
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if secret[name] && !slices.Contains(s.Required, name) {
			continue
		}
		p := s.Properties[name]
		f := field{name: name, doc: p.Description, schema: p, required: slices.Contains(s.Required, name)}
		if n := len(p.AnyOf); n == 2 && p.AnyOf[1].Type == "null" {
			f.schema, f.null = p.AnyOf[0], true
		}
		list = append(list, f)
	}
	return list
}

// wrap breaks text into lines of at most so many characters.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

func quoted(values []string) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = fmt.Sprintf("%q", v)
	}
	return list
}
