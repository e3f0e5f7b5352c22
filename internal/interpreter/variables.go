package interpreter

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// assignments are statements that set an environment variable in a kernel of
// Jupyter's, or unset it if there is no value.
var assignments = map[string]func(name string, value *string) string{
	"python": func(name string, value *string) string {
		if value == nil {
			return fmt.Sprintf(`__import__("os").environ.pop(%s, None)`, quoted(name))
		}
		return fmt.Sprintf(`__import__("os").environ[%s] = %s`, quoted(name), quoted(*value))
	},
	"javascript": assignInNode,
	"typescript": assignInNode,
	"bash": func(name string, value *string) string {
		if value == nil {
			return "unset " + name
		}
		return "export " + name + "=" + bashQuoted(*value)
	},
	"r": func(name string, value *string) string {
		if value == nil {
			return fmt.Sprintf(`Sys.unsetenv(%s)`, quoted(name))
		}
		return fmt.Sprintf(`Sys.setenv(%s = %s)`, quoted(name), quoted(*value))
	},
	// The environment of a JVM cannot be changed: E2B's are properties too.
	"java": func(name string, value *string) string {
		if value == nil {
			return fmt.Sprintf(`System.clearProperty(%s);`, quoted(name))
		}
		return fmt.Sprintf(`System.setProperty(%s, %s);`, quoted(name), quoted(*value))
	},
}

// reseeds are statements that have a kernel of Jupyter's draw other random numbers
// than the sandbox that its memory was copied from. A language that is not here goes
// on as it was.
var reseeds = map[string]func() string{
	"python": func() string {
		return fmt.Sprintf(`exec(%s, {})`, quoted("import os, sys\n"+string(reseed)+"\nreseed()\n"))
	},
	"bash": func() string { return "RANDOM=" + seed() },
	"r":    func() string { return "set.seed(" + seed() + ")" },
}

// seed returns a number that every language takes for a seed.
func seed() string {
	var b [4]byte
	rand.Read(b[:])
	return strconv.Itoa(int(binary.BigEndian.Uint32(b[:]) >> 1))
}

func assignInNode(name string, value *string) string {
	if value == nil {
		return fmt.Sprintf(`delete globalThis.process.env[%s];`, quoted(name))
	}
	return fmt.Sprintf(`globalThis.process.env[%s] = %s;`, quoted(name), quoted(*value))
}

// setVariables returns code that sets variables, or unsets those that are nil.
func setVariables(language string, variables map[string]*string) (string, error) {
	assign := assignments[language]
	if assign == nil {
		return "", fmt.Errorf("env_vars are not supported in a kernel for %s: set them for the whole sandbox", language)
	}
	var lines []string
	for name, value := range variables {
		lines = append(lines, assign(name, value))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// quoted is a string as JSON has it, which all these languages understand.
func quoted(text string) string {
	data, _ := json.Marshal(text)
	return string(data)
}

// bashQuoted is one line: kernels give bash one at a time.
func bashQuoted(text string) string {
	var b strings.Builder
	b.WriteString("$'")
	for _, c := range []byte(text) {
		switch {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteString("'")
	return b.String()
}
