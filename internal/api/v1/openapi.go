package v1

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/bundle"
)

// openapi answers with the document.
func (s *server) openapi(*call) (reply, error) { return ok(json.RawMessage(s.document())) }

// OpenAPI returns the description of the API in OpenAPI 3.1, made of the table
// of routes, the vocabularies of bodies and the types of answers.
func OpenAPI() []byte {
	all := schemas{map[string]schema{}, map[string]reflect.Type{}}
	all.add(reflect.TypeFor[errorView]())
	all.add(reflect.TypeFor[body.Hooks]())
	all.add(reflect.TypeFor[body.Service]())
	paths := map[string]schema{}
	for _, r := range routes() {
		if paths[r.pattern] == nil {
			paths[r.pattern] = schema{}
		}
		paths[r.pattern][strings.ToLower(r.method)] = r.describe(all)
	}
	doc := schema{
		"openapi": "3.1.0",
		"info": schema{
			"title": "drowse", "version": "1",
			"description": "Sandboxes that sleep when nothing happens and wake with their memory, their processes and their files. " +
				"Times are RFC 3339 in UTC, durations are in seconds. Unknown fields are rejected. " +
				"Fields of requests have other spellings too, which docs/api/options.md lists; this description has the canonical names only.",
			"license": schema{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers": []schema{
			{"url": "/", "description": "The server that this description came from."},
			{"url": "http://127.0.0.1:3000", "description": "The default address of drowse serve."},
		},
		"paths": paths,
		"components": schema{
			"schemas": all.all,
			"securitySchemes": schema{
				"apiKey": schema{"type": "apiKey", "in": "header", "name": "X-API-Key"},
				"bearer": schema{"type": "http", "scheme": "bearer"},
			},
			"responses": schema{"Error": schema{
				"description": "An error; its status follows from its code, see GET /v1/errors.",
				"content":     jsonContent(refTo(reflect.TypeFor[errorView]())),
			}},
		},
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		panic("internal error: v1: encode the API's description: " + err.Error())
	}
	return b.Bytes()
}

func jsonContent(of schema) schema { return schema{"application/json": schema{"schema": of}} }

func bundleContent() schema {
	return schema{bundle.ContentType: schema{"schema": schema{"type": "string", "format": "binary"}}}
}

// describe returns the operation of a route.
func (r route) describe(all schemas) schema {
	op := schema{
		"operationId": r.name, "summary": r.summary,
		"responses":  r.responses(all),
		"x-activity": r.effect == activity || r.effect == both,
		"x-wakes":    r.effect == wakes || r.effect == both,
	}
	op["security"] = []schema{}
	if r.access != open {
		op["security"] = []schema{{"apiKey": []string{}}, {"bearer": []string{}}}
		op["x-roles"] = auth.Roles(auth.Permission(r.access))
	}
	if params := r.params(); len(params) > 0 {
		op["parameters"] = params
	}
	if r.body != nil {
		body := bodySchema(r.body)
		op["requestBody"] = schema{"required": body["required"] != nil, "content": jsonContent(body)}
	}
	if r.carries == upload || r.carries == archive {
		op["requestBody"] = schema{"required": true, "content": bundleContent()}
	}
	return op
}

func (r route) params() []schema {
	var all []schema
	for seg := range strings.SplitSeq(r.pattern, "/") {
		if httpapi.IsParam(seg) {
			all = append(all, schema{"name": seg[1 : len(seg)-1], "in": "path", "required": true, "schema": schema{"type": "string"}})
		}
	}
	query := r.query
	if r.carries == streamed {
		query = append(slices.Clone(query), param{"Last-Event-ID", "header", "The id of the last event seen: a stream goes on after it.", schema{"type": "integer"}})
	}
	for _, p := range query {
		all = append(all, schema{"name": p.name, "in": p.in, "description": p.doc, "schema": p.schema})
	}
	return all
}

func (r route) responses(all schemas) schema {
	responses := schema{"default": schema{"$ref": "#/components/responses/Error"}}
	if r.status == failed {
		responses["501"] = schema{"$ref": "#/components/responses/Error"}
		return responses
	}
	success := schema{"description": http.StatusText(r.status)}
	if r.answer != nil {
		content := jsonContent(all.of(reflect.TypeOf(r.answer)))
		if r.carries == streamed {
			content["text/event-stream"] = schema{"schema": schema{
				"type": "string", "description": "Events with the id and type of an entry of the log, and the entry as data.",
			}}
		}
		if r.carries == progress || r.carries == archive {
			content[linesType] = schema{"schema": schema{
				"type": "string", "description": "For who accepts it: one JSON object a line, with progress, and at the end template, image or error.",
			}}
		}
		success["content"] = content
	}
	switch r.carries {
	case download:
		success["content"] = bundleContent()
	case imageDownload:
		success["content"] = schema{archiveType: schema{"schema": schema{"type": "string", "format": "binary"}}}
	}
	responses[strconv.Itoa(r.status)] = success
	return responses
}

// bodySchema returns the schema of a body: each option by its name. Other
// spellings are understood, and are for clients that say them already; generated
// clients would have a field for each.
func bodySchema(v body.Vocabulary) schema {
	properties, required := schema{}, []string{}
	for _, sp := range v.Spellings() {
		if sp.Option.Refused || sp.Path != sp.Option.Name {
			continue
		}
		properties[sp.Path] = described(sp.Form.Schema, sp.Option.Doc+" ("+sp.Form.Words+")")
		if sp.Option.Required {
			required = append(required, sp.Path)
		}
	}
	object := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		object["required"] = required
	}
	return object
}

// OptionDoc describes an option of a sandbox, for documentation.
type OptionDoc struct {
	Name      string
	Doc       string
	Patchable bool
	Spellings []SpellingDoc
}

// SpellingDoc is one way to write an option.
type SpellingDoc struct{ Path, Form string }

// OptionDocs returns every option of a sandbox, in the order of the table.
func OptionDocs() []OptionDoc {
	var docs []OptionDoc
	for _, o := range body.Options {
		if o.Refused {
			continue
		}
		doc := OptionDoc{Name: o.Name, Doc: o.Doc, Patchable: o.Patch != nil}
		for _, sp := range body.Options.Spellings() {
			if sp.Option.Name == o.Name {
				doc.Spellings = append(doc.Spellings, SpellingDoc{sp.Path, sp.Form.Words})
			}
		}
		docs = append(docs, doc)
	}
	return docs
}
