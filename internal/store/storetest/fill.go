package storetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// epoch is when the suite's times begin.
var epoch = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)

// utc returns the n-th distinct time.
func utc(n int) time.Time {
	return epoch.Add(time.Duration(n)*time.Hour + time.Duration(n)*1001*time.Nanosecond)
}

// elsewhere returns the instant of utc on a clock in another zone.
func elsewhere(n int) time.Time {
	return utc(n).In(time.FixedZone("elsewhere", 2*60*60))
}

// fill sets every field that can be reached from *p to a value of its own,
// always the same, none of them zero. Times come from at. A kind of field that
// it does not know fails the test: then decide how it is stored, and teach it.
func fill(t *testing.T, p any, at func(n int) time.Time) {
	t.Helper()
	f := filler{t: t, at: at}
	f.fill(reflect.TypeOf(p).Elem().Name(), reflect.ValueOf(p).Elem())
}

type filler struct {
	t  *testing.T
	at func(n int) time.Time
	n  int // of values set
}

func (f *filler) fill(path string, v reflect.Value) {
	f.t.Helper()
	f.n++
	if f.special(v) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("%s <%d> é\n", path, f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.n)<<31 + 1) // more than a float32 or an int32 holds
	case reflect.Float64:
		v.SetFloat(float64(f.n) + 0.01)
	case reflect.Uint8:
		v.SetUint(uint64(f.n%255 + 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(path, v.Elem())
	case reflect.Struct:
		f.fields(path, v)
	case reflect.Array:
		f.elements(path, v)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.elements(path, v)
	case reflect.Map:
		f.entries(path, v)
	default:
		f.t.Fatalf("%s: storetest cannot fill a %s", path, v.Type())
	}
}

// special sets the types whose kind does not say what they hold.
func (f *filler) special(v reflect.Value) bool {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(f.at(f.n)))
	case json.RawMessage:
		v.Set(reflect.ValueOf(json.RawMessage(fmt.Sprintf(`{"b":[%d,1.50],"a":"<&>"}`, f.n))))
	case lifecycle.Refresh: // no other text is one
		v.Set(reflect.ValueOf(lifecycle.RefreshOnRequests))
	default:
		return false
	}
	return true
}

func (f *filler) fields(path string, v reflect.Value) {
	f.t.Helper()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if !field.IsExported() {
			f.t.Fatalf("%s.%s is not exported, so no store can keep it", path, field.Name)
		}
		if v.Type() == reflect.TypeFor[store.Proxy]() && field.Name == "Password" {
			continue // never stored
		}
		if v.Type() == reflect.TypeFor[store.Sandbox]() && slices.Contains([]string{"Rev", "Light", "Durability", "Unreplicated"}, field.Name) {
			continue // the store's own, and the server's own
		}
		if v.Type() == reflect.TypeFor[store.Snapshot]() && field.Name == "Durability" {
			continue // it says where another record is
		}
		if field.Name == "Owner" && field.Tag.Get("json") == "-" {
			continue // the store's own
		}
		f.fill(path+"."+field.Name, v.Field(i))
	}
}

func (f *filler) elements(path string, v reflect.Value) {
	f.t.Helper()
	for i := range v.Len() {
		f.fill(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
	}
}

func (f *filler) entries(path string, v reflect.Value) {
	f.t.Helper()
	v.Set(reflect.MakeMap(v.Type()))
	for range 2 {
		key := reflect.New(v.Type().Key()).Elem()
		value := reflect.New(v.Type().Elem()).Elem()
		f.fill(path+" key", key)
		f.fill(path+" value", value)
		v.SetMapIndex(key, value)
	}
}

// diff reports the fields in which got is not bit for bit what is wanted.
func diff(t *testing.T, path string, got, want any) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for g.Kind() == reflect.Pointer && !g.IsNil() && !w.IsNil() {
		g, w = g.Elem(), w.Elem()
	}
	if _, isTime := want.(time.Time); g.Kind() != reflect.Struct || isTime {
		t.Errorf("%s = %#v, want %#v", path, got, want)
		return
	}
	for i := range g.NumField() {
		diff(t, path+"."+g.Type().Field(i).Name, g.Field(i).Interface(), w.Field(i).Interface())
	}
}
