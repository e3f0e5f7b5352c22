// Package golden holds what a program writes to files in testdata, for formats
// that other programs, or later versions of this one, read. A test writes a
// value in which every field is set ([Fill]) and compares the bytes with the
// file of the present version ([Hold]). A difference is a new version of the
// format, and the file of the old one stays.
//
// "go test -golden" writes the files. Do that for a new version only.
package golden

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

var write = flag.Bool("golden", false, "write the present version of published formats into testdata")

// Hold compares data with a file, which ends with a newline more.
func Hold(t *testing.T, path string, data []byte) {
	t.Helper()
	data = append(data[:len(data):len(data)], '\n')
	if *write {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(path); err != nil || string(kept) != string(data) {
		t.Errorf("what is written has changed, and its version has not: give it another number, and keep %s (%v). Now it is\n%s", path, err, data)
	}
}

// Read returns what Hold has compared: a file without its last newline.
func Read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || len(data) == 0 || data[len(data)-1] != '\n' {
		t.Fatalf("%s: %d bytes, %v", path, len(data), err)
	}
	return data[:len(data)-1]
}

// Fill sets everything below what p points to, to something that is not zero.
func Fill(t *testing.T, p any) {
	t.Helper()
	fill(t, reflect.ValueOf(p).Elem())
}

func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(3)
	case reflect.Float64:
		v.SetFloat(3)
	case reflect.Uint32:
		v.SetUint(7)
	case reflect.String:
		v.SetString("text")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key)
		fill(t, value)
		v.SetMapIndex(key, value)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte("17"))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)))
			return
		}
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	default:
		t.Fatalf("a %s in a format", v.Type())
	}
}
