package workshop

import (
	"reflect"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// TestNoDefaultCounts: a server with a default for everything gives a sandbox of a
// build none of them.
func TestNoDefaultCounts(t *testing.T) {
	var d supervisor.Defaults
	v := reflect.ValueOf(&d).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString(string(lifecycle.Pause))
		case reflect.Int64:
			f.SetInt(int64(time.Hour))
		case reflect.Bool:
			f.SetBool(true)
		default:
			t.Fatalf("%s is a %s: have this test set it", v.Type().Field(i).Name, f.Kind())
		}
	}
	set := lifecycle.Settings{Timeout: time.Hour} // with which every default could count
	if _, given := d.Fill(set); len(given) != v.NumField() {
		t.Fatalf("of %d defaults %d count without said: %q", v.NumField(), len(given), given)
	}
	if _, given := d.Fill(set, said...); len(given) != 0 {
		t.Errorf("these defaults count, and are not in said: %q", given)
	}
}
