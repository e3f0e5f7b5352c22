package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

const typescriptHead = `// Generated from docs/api/openapi.json by sdk/gen. Do not edit.
//
// What the API answers, and what it can be asked for, as it is on the wire: times
// are RFC 3339 in UTC, durations are numbers of seconds.
`

func typescriptModels(models []model) string {
	var b strings.Builder
	b.WriteString(typescriptHead)
	for _, m := range models {
		b.WriteString("\n")
		writeComment(&b, m.doc, "")
		fmt.Fprintf(&b, "export interface %s {\n", m.name)
		for _, f := range m.fields {
			writeComment(&b, f.doc, "  ")
			kind := typescriptType(f.schema)
			if f.null {
				kind += " | null"
			}
			mark := ""
			if !f.required {
				mark = "?"
			}
			if m.input {
				kind += orUndefined(mark)
			}
			fmt.Fprintf(&b, "  %s%s: %s;\n", f.name, mark, kind)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// orUndefined lets callers whose compiler has exactOptionalPropertyTypes say
// undefined for what they do not ask for.
func orUndefined(mark string) string {
	if mark == "" {
		return ""
	}
	return " | undefined"
}

func writeComment(b *strings.Builder, doc, indent string) {
	if doc == "" {
		return
	}
	lines := wrap(strings.ReplaceAll(doc, "*/", "* /"), 94)
	if len(lines) == 1 {
		fmt.Fprintf(b, "%s/** %s */\n", indent, lines[0])
		return
	}
	fmt.Fprintf(b, "%s/**\n", indent)
	for _, line := range lines {
		fmt.Fprintf(b, "%s * %s\n", indent, line)
	}
	fmt.Fprintf(b, "%s */\n", indent)
}

func typescriptType(s schema) string {
	switch {
	case s.Ref != "":
		return typeName(s.Ref[strings.LastIndex(s.Ref, "/")+1:])
	case len(s.AnyOf) > 0:
		var ways []string
		for _, one := range s.AnyOf {
			ways = append(ways, typescriptType(one))
		}
		return strings.Join(ways, " | ")
	case len(s.Enum) > 0:
		return strings.Join(quoted(s.Enum), " | ")
	}
	switch s.Type {
	case "string", "boolean", "null":
		return s.Type
	case "integer", "number":
		return "number"
	case "array":
		of := typescriptType(*s.Items)
		if strings.Contains(of, " ") {
			of = "(" + of + ")"
		}
		return of + "[]"
	case "object":
		if of, ok := s.Additional.(map[string]any); ok && of["type"] == "string" {
			return "Record<string, " + typescriptType(stringsOf(of)) + ">"
		}
		if len(s.Properties) > 0 {
			var parts []string
			for _, f := range fieldsOf(s) {
				mark := ""
				if !f.required {
					mark = "?"
				}
				parts = append(parts, f.name+mark+": "+typescriptType(f.schema))
			}
			return "{ " + strings.Join(parts, "; ") + " }"
		}
		return "Record<string, unknown>"
	}
	return "unknown"
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
