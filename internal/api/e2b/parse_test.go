package e2b

import (
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/store"
)

// What npm e2b 2.51 sends for {"k e&y": "1&=% é"}, as seen on the wire.
func TestMetadataAsJavaScriptSendsIt(t *testing.T) {
	query, err := url.ParseQuery("metadata=k%252520e%252526y%3D1%252526%25253D%252525%252520%2525C3%2525A9")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseMetadata(query.Get("metadata"))
	if want := (store.Labels{{"k e&y", "1&=% é"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
	if !got.Hold(map[string]string{"k e&y": "1&=% é", "other": ""}) || got.Hold(map[string]string{"k e&y": "1"}) || got.Hold(nil) {
		t.Error("the filter does not hold what it says")
	}
}

func TestParseMetadata(t *testing.T) {
	tests := map[string]struct {
		param string
		want  store.Labels // nil with bad set: refused
		bad   bool
	}{
		"none":              {"", nil, false},
		"one":               {"a=b", store.Labels{{"a", "b"}}, false},
		"two":               {"a=b&c=d", store.Labels{{"a", "b"}, {"c", "d"}}, false},
		"as a whole":        {"a%3Db%26c%3Dd", store.Labels{{"a", "b"}, {"c", "d"}}, false},
		"twice":             {"a=%2526", store.Labels{{"a", "&"}}, false},
		"empty value":       {"a=", store.Labels{{"a", ""}}, false},
		"empty key":         {"=b", store.Labels{{"", "b"}}, false},
		"plus is a space":   {"a=b+c", store.Labels{{"a", "b c"}}, false},
		"plus escaped":      {"a=b%252Bc", store.Labels{{"a", "b+c"}}, false},
		"no equals":         {"a", nil, true},
		"two equals":        {"a=b=c", nil, true},
		"once too few":      {"a=b%3Dc", nil, true},
		"empty pair":        {"a=b&&c=d", nil, true},
		"bad escape":        {"a=%", nil, true},
		"bad inner escape":  {"a=%25", nil, true},
		"bad escape of key": {"%25=a", nil, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseMetadata(tt.param)
			if (err != nil) != tt.bad || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

// component is encodeURIComponent.
func component(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// FuzzMetadata holds that no parameter is too strange to be judged, and that
// what a client encodes is what is read.
func FuzzMetadata(f *testing.F) {
	f.Add("a=b&c=d", "k e&y", "1&=% é")
	f.Add("k%2520e=1%2526", "+", "\x00")
	f.Add("%", "", "")
	f.Fuzz(func(t *testing.T, param, key, value string) {
		if filter, err := parseMetadata(param); err != nil && filter != nil {
			t.Error("refused and parsed")
		}
		form := url.QueryEscape(component(key)) + "=" + url.QueryEscape(component(value))
		got, err := parseMetadata(form)
		if want := (store.Labels{{key, value}}); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read as %q, %v; want %q", form, got, err, want)
		}
	})
}

// FuzzToken holds that what is accepted is what was given, and that what is
// given is accepted.
func FuzzToken(f *testing.F) {
	f.Add(tokenOf(ascending), int64(1), "i1")
	f.Add(tokenOf(descending), int64(-62135596800000000), "")
	f.Add("ZGVzYyAxIHg", int64(0), "a b")
	f.Fuzz(func(t *testing.T, token string, startedAt int64, id string) {
		for _, o := range []order{ascending, descending} {
			if c, err := parseToken(token, o); err == nil && (c.token() != token || c.order != o) {
				t.Errorf("%q is accepted as %+v", token, c)
			}
			c := cursor{order: o, startedAt: startedAt, id: id}
			got, err := parseToken(c.token(), o)
			if legal := !strings.Contains(id, " "); (err == nil) != legal || legal && got != c {
				t.Errorf("%+v is read as %+v, %v", c, got, err)
			}
		}
	})
}

func TestParseSandboxID(t *testing.T) {
	for text, want := range map[string]string{
		"i1": "i1", "0": "0", "i1-abc": "i1", "i1-00000000": "i1", "i1-Drowse": "i1",
		"": "", "I1": "", "i1-": "", "-i1": "", "i1-a-b": "", "i1--a": "", "i.1": "", "i1\n": "", "i1-a/b": "", "é": "",
	} {
		got, err := parseSandboxID(text)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
}
