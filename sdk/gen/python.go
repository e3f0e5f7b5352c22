package main

import (
	"fmt"
	"regexp"
	"strings"
)

const pythonHead = `# Generated from docs/api/openapi.json by sdk/gen. Do not edit.
"""What the API answers, and what it can be asked for.

Durations are in seconds; where one is asked for, a timedelta is one too. A field
that a server of an older version does not send is None, or empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

`

func pythonModels(models []model) string {
	var b strings.Builder
	b.WriteString(pythonHead)
	wire := map[string]string{}
	var all []string
	for _, m := range models {
		all = append(all, m.name)
	}
	fmt.Fprintf(&b, "__all__ = [\n    %s,\n]\n", strings.Join(quoted(all), ",\n    "))
	for _, m := range models {
		if m.input {
			fmt.Fprintf(&b, "\n\nclass %s(TypedDict, total=False):\n", m.name)
			writeDoc(&b, m.doc)
		} else {
			fmt.Fprintf(&b, "\n\n@dataclass(frozen=True, slots=True, kw_only=True)\nclass %s:\n", m.name)
			writeDoc(&b, m.doc)
		}
		for i, f := range m.fields {
			if i == 0 && m.doc != "" {
				b.WriteString("\n")
			}
			if f.name == m.first {
				continue
			}
			name := snake(f.name)
			wire[name] = f.name
			kind := pythonType(f.schema, m.input)
			switch {
			case m.input:
				if strings.HasSuffix(f.name, "Seconds") {
					kind += " | timedelta"
				}
				fmt.Fprintf(&b, "    %s: %s\n", name, kind)
			case f.null || !f.required:
				fmt.Fprintf(&b, "    %s: %s | None = None\n", name, kind)
			default:
				fmt.Fprintf(&b, "    %s: %s\n", name, kind)
			}
			writeDoc(&b, f.doc)
		}
	}
	b.WriteString("\n\n#: The names of fields on the wire, where they are others.\nWIRE_NAMES = {\n")
	for _, m := range models {
		for _, f := range m.fields {
			name := snake(f.name)
			if wire[name] != "" && wire[name] != f.name {
				panic("gen: " + f.name + " and " + wire[name] + " have one name in Python")
			}
		}
	}
	for _, name := range sortedKeys(wire) {
		if wire[name] != name {
			fmt.Fprintf(&b, "    %q: %q,\n", name, wire[name])
		}
	}
	b.WriteString("}\n")
	return b.String()
}

func writeDoc(b *strings.Builder, doc string) {
	if doc == "" {
		return
	}
	lines := wrap(strings.ReplaceAll(doc, `\`, `\\`), 92)
	if len(lines) == 1 && !strings.HasSuffix(lines[0], `"`) {
		fmt.Fprintf(b, "    \"\"\"%s\"\"\"\n", lines[0])
		return
	}
	fmt.Fprintf(b, "    \"\"\"%s\n    \"\"\"\n", strings.Join(lines, "\n    "))
}

var (
	humps    = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	keywords = map[string]bool{"from": true}
)

// snake returns the name that a field has in Python: seconds are what every
// duration is in there, so names do not say so.
func snake(name string) string {
	name = strings.TrimSuffix(strings.ReplaceAll(name, "MiB", "Mib"), "Seconds")
	name = strings.ToLower(humps.ReplaceAllString(name, "${1}_${2}"))
	if keywords[name] {
		name += "_"
	}
	return name
}

func pythonType(s schema, input bool) string {
	list, dict := "list", "dict"
	if input {
		list, dict = "Sequence", "Mapping"
	}
	switch {
	case s.Ref != "":
		return typeName(s.Ref[strings.LastIndex(s.Ref, "/")+1:])
	case len(s.AnyOf) > 0:
		var ways []string
		for _, one := range s.AnyOf {
			way := pythonType(one, input)
			if one.Type == "null" {
				way = "None"
			}
			ways = append(ways, way)
		}
		return strings.Join(ways, " | ")
	case len(s.Enum) > 0:
		return "Literal[" + strings.Join(quoted(s.Enum), ", ") + "]"
	case s.Format == "date-time":
		return "datetime"
	}
	switch s.Type {
	case "string":
		return "str"
	case "boolean":
		return "bool"
	case "integer":
		return "int"
	case "number":
		return "float"
	case "array":
		return list + "[" + pythonType(*s.Items, input) + "]"
	case "object":
		if of, ok := s.Additional.(map[string]any); ok && of["type"] == "string" {
			return dict + "[str, " + pythonType(stringsOf(of), input) + "]"
		}
		if input {
			return "Mapping[str, Any]"
		}
		return "dict[str, Any]"
	}
	return "Any"
}

// stringsOf is the schema of the values of a map of strings.
func stringsOf(of map[string]any) schema {
	s := schema{Type: "string"}
	values, _ := of["enum"].([]any)
	for _, v := range values {
		s.Enum = append(s.Enum, v.(string))
	}
	return s
}
