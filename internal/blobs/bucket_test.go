package blobs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// refused holds that an error has a code and a remedy, says something, and no secret.
func refused(t *testing.T, what string, err error, code, says string) {
	t.Helper()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Code != code || e.Remedy == "" || !strings.Contains(e.Error(), says) {
		t.Errorf("%s: %v; want code %s, a remedy, and %q", what, err, code, says)
	}
	want := map[string]errdef.Class{"blobs_unusable": errdef.Invalid, "blobs_unavailable": errdef.Unavailable}[code]
	if errdef.ClassOf(err) != want {
		t.Errorf("%s: class %s, want %s", what, errdef.ClassOf(err), want)
	}
	for all := err; all != nil; all = errors.Unwrap(all) {
		if text := fmt.Sprintf("%v %+v", all, all); strings.Contains(text, blobstest.SecretKey) || strings.Contains(text, "hunter2") {
			t.Errorf("%s: a secret shows: %s", what, text)
		}
	}
}

// unavailable holds that no call of a store works, and why.
func unavailable(t *testing.T, s blobs.Store, says string) {
	t.Helper()
	const code = "blobs_unavailable"
	refused(t, "put", s.Put(t.Context(), "k/new", []byte("x")), code, says)
	_, err := s.Get(t.Context(), "k/v", 100)
	refused(t, "get", err, code, says)
	refused(t, "remove", s.Remove(t.Context(), "k/v"), code, says)
	refused(t, "remove two", s.Remove(t.Context(), "k/v", "k/w"), code, says)
	n := 0
	for _, err := range s.List(t.Context(), "k") {
		n++
		refused(t, "list", err, code, says)
	}
	if n != 1 {
		t.Errorf("list gives %d results, want the error", n)
	}
}

func TestOpenRefusesURLs(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "k")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	for from, says := range map[string]string{
		"":                        "no URL",
		"relative/path":           "no URL",
		"https://hunter2@h/b":     "no URL",
		"file://host/path":        "malformed",
		"file:///a?hunter2=1":     "malformed",
		"s3://":                   "name",
		"s3:bucket":               "malformed",
		"s3://B_/":                "name",
		"s3://../x":               "name",
		"s3://id:hunter2@bucket":  "credentials do not belong",
		"s3://id:hun/ter2@bucket": "credentials do not belong",
		"s3://bucket?endpoint=http://id:hunter2@host":               "credentials do not belong",
		"s3://bucket?endpoint=http%3A%2F%2Fid%3Ahunter2%40host":     "credentials do not belong",
		"s3://bucket?secret_key=hunter2":                            "secret_key",
		"s3://bucket?region=a&region=b":                             "more than one",
		"s3://bucket?region=a/hunter2":                              "region",
		"s3://bucket?endpoint=host:90":                              "http[s]://HOST",
		"s3://bucket?endpoint=http://host/path":                     "http[s]://HOST",
		"s3://bucket?endpoint=ftp://host":                           "http[s]://HOST",
		"s3://bucket/Prefix":                                        "prefix",
		"s3://bucket/a/../../b":                                     "prefix",
		"s3://bucket/" + strings.Repeat("a", 201):                   "prefix",
		"s3://bucket#hunter2":                                       "malformed",
		"s3://bucket?endpoint=http://127.0.0.1:port%20hunter2":      "http[s]://HOST",
		"s3://bucket?endpoint=http://127.0.0.1:1&region=%zzhunter2": "malformed",
	} {
		s, err := blobs.Open(t.Context(), from)
		if s != nil {
			t.Errorf("%s: there is a store", from)
		}
		refused(t, from, err, "blobs_unusable", says)
	}
}

func TestBucketCannotBeUsed(t *testing.T) {
	url := blobstest.Gateway(t)
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		name, url string
		env       map[string]string
		says      string
	}{
		{"wrong secret", url, map[string]string{"AWS_SECRET_ACCESS_KEY": "hunter2"}, "secret key of the credentials is wrong"},
		{"unknown key", url, map[string]string{"AWS_ACCESS_KEY_ID": "nobody"}, "does not know the access key"},
		{"no bucket", strings.Replace(url, "//"+blobstest.Bucket, "//other-bucket", 1), nil, "no such bucket"},
		{"region", url + "&region=eu-west-7", nil, "region"},
		{"region of the environment", url, map[string]string{"AWS_REGION": "eu-west-7"}, "region"},
		{"no credentials", url, map[string]string{
			"AWS_ACCESS_KEY_ID": "", "AWS_SHARED_CREDENTIALS_FILE": none, "AWS_CONFIG_FILE": none,
			"AWS_EC2_METADATA_DISABLED": "true",
		}, "no credentials were found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			_, err := blobs.Open(t.Context(), c.url)
			refused(t, c.name, err, "blobs_unusable", c.says)
		})
	}
}

// TestBucketOfUnknownAuthority has a certificate that no authority has signed.
func TestBucketOfUnknownAuthority(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = nil
	s.StartTLS()
	defer s.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "k")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
	_, err := blobs.Open(t.Context(), "s3://bucket?endpoint="+s.URL)
	refused(t, "open", err, "blobs_unusable", "certificate")
}

// TestBucketByOtherCredentials has them where they may be beside the environment, and
// the endpoint in the environment.
func TestBucketByOtherCredentials(t *testing.T) {
	g := blobstest.NewGateway(t)
	none := filepath.Join(t.TempDir(), "none")
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://"+g.Addr)
	t.Run("file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "credentials")
		text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", blobstest.AccessKey, blobstest.SecretKey)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
		open(t, "s3://"+blobstest.Bucket+"/file/")
		if err := os.WriteFile(file, []byte("hunter2 is no line of such a file\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
		_, err := blobs.Open(t.Context(), "s3://"+blobstest.Bucket)
		refused(t, "a broken file", err, "blobs_unusable", "no credentials were found")
	})
	t.Run("role", func(t *testing.T) {
		role := blobstest.NewRole(t)
		setenv(t, role.Env())
		role.Give()
		open(t, "s3://"+blobstest.Bucket+"/role")
	})
	t.Run("role that comes later", func(t *testing.T) {
		role := blobstest.NewRole(t)
		setenv(t, role.Env())
		s, err := blobs.Open(t.Context(), "s3://"+blobstest.Bucket+"/later")
		refused(t, "open", err, "blobs_unavailable", "the role of this machine gives no credentials: 503")
		if s == nil {
			t.Fatal("there is no store")
		}
		refused(t, "put", s.Put(t.Context(), "k/v", []byte("x")), "blobs_unavailable", "gives no credentials")
		role.Give()
		if err := s.Put(t.Context(), "k/v", []byte("x")); err != nil {
			t.Errorf("when there are credentials: %v", err)
		}
	})
	t.Run("role that nobody gives", func(t *testing.T) {
		t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/")
		s, err := blobs.Open(t.Context(), "s3://"+blobstest.Bucket)
		refused(t, "open", err, "blobs_unavailable", "connection refused")
		if s == nil {
			t.Error("there is no store")
		}
	})
}

func TestGatewayIsKilled(t *testing.T) {
	g := gateway(t)
	s, err := blobs.OpenBucket(t.Context(), g.URL(), time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "k/v", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	g.Kill()
	unavailable(t, s, "connection refused") // without a wait for what is silent
	later, err := blobs.Open(t.Context(), g.URL())
	refused(t, "open", err, "blobs_unavailable", "connection refused")
	g.Start(t)
	if got, err := later.Get(t.Context(), "k/v", 4); err != nil || string(got) != "kept" {
		t.Errorf("opened before its start: %q, %v", got, err)
	}
	if got, err := s.Get(t.Context(), "k/v", 4); err != nil || string(got) != "kept" {
		t.Errorf("after its start: %q, %v", got, err)
	}
}

// gateway is blobstest.NewGateway with the environment that it needs.
func gateway(t *testing.T) *blobstest.Server {
	t.Helper()
	g := blobstest.NewGateway(t)
	setenv(t, g.Env())
	return g
}

// setenv sets variables of the environment, until the test ends.
func setenv(t *testing.T, env []string) {
	t.Helper()
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
}

func TestGatewayHangs(t *testing.T) {
	g := gateway(t)
	long, err := blobs.OpenBucket(t.Context(), g.URL(), time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := long.Put(t.Context(), "k/v", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	s, err := blobs.OpenBucket(t.Context(), g.URL(), time.Hour, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	g.Hang(t)
	unavailable(t, s, "did not answer in time")
	short, err := blobs.OpenBucket(t.Context(), g.URL(), 200*time.Millisecond, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	// More than what the system takes before the gateway reads.
	refused(t, "put", short.Put(t.Context(), "k/x", make([]byte, 16<<20)), "blobs_unavailable", "did not answer in time")

	// A ctx that ends does not wait for the store.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	go func() { ended <- long.Put(ctx, "k/x", make([]byte, 16<<20)) }()
	go func() { _, err := long.Get(ctx, "k/v", 4); ended <- err }()
	go func() { ended <- long.Remove(ctx, "k/v") }()
	cancel()
	for range 3 {
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		case <-time.After(testmode.Patience()):
			t.Fatal("a call goes on after the end of its ctx")
		}
	}
	g.Continue(t)
	testmode.Eventually(t, "the store works again", func() bool { return s.Put(t.Context(), "k/y", nil) == nil })
}

// TestBucketGoesAway removes the bucket of a store that was fine.
func TestBucketGoesAway(t *testing.T) {
	g := gateway(t)
	s := open(t, g.URL())
	if err := os.RemoveAll(g.Dir()); err != nil {
		t.Fatal(err)
	}
	unavailable(t, s, "no such bucket")
}

// front is a server before a gateway. Handle returns false for what the gateway is to
// answer.
func front(t *testing.T, handle func(w http.ResponseWriter, r *http.Request) bool) (s blobs.Store, bucket string) {
	t.Helper()
	g := gateway(t)
	target := &url.URL{Scheme: "http", Host: g.Addr}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !handle(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	s, err := blobs.OpenBucket(t.Context(), "s3://"+blobstest.Bucket+"?endpoint="+server.URL, time.Minute, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return s, g.Dir()
}

// answer gives an error as object storage does.
func answer(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>the test wants it</Message></Error>", code)
}

// cut breaks the connection of a request off.
func cut(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		conn.Close()
	}
}

func TestCredentialsAreRevoked(t *testing.T) {
	var requests atomic.Int64
	s, _ := front(t, func(w http.ResponseWriter, r *http.Request) bool {
		requests.Add(1)
		answer(w, http.StatusForbidden, "InvalidAccessKeyId")
		return true
	})
	unavailable(t, s, "does not know the access key")
	if n := requests.Load(); n != 5 {
		t.Errorf("%d requests for 5 calls: what does not pass was tried again", n)
	}
}

// TestPassingFaults has each fault twice, and then none.
func TestPassingFaults(t *testing.T) {
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request){
		"slow down": func(w http.ResponseWriter, r *http.Request) { answer(w, http.StatusServiceUnavailable, "SlowDown") },
		"internal error": func(w http.ResponseWriter, r *http.Request) {
			answer(w, http.StatusInternalServerError, "InternalError")
		},
		"a proxy's words": func(w http.ResponseWriter, r *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) },
		"cut off":         func(w http.ResponseWriter, r *http.Request) { cut(w) },
		"cut off within": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			w.Header().Set("ETag", `"x"`)
			if r.Method != http.MethodGet {
				_, _ = io.CopyN(io.Discard, r.Body, 10)
				cut(w)
				return
			}
			_, _ = io.WriteString(w, "ten bytes.")
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var left atomic.Int64
			s, _ := front(t, func(w http.ResponseWriter, r *http.Request) bool {
				if left.Add(-1) < 0 {
					return false
				}
				fault(w, r)
				return true
			})
			want := bytes.Repeat([]byte("data"), 25)
			left.Store(2)
			if err := s.Put(t.Context(), "k/v", want); err != nil {
				t.Errorf("put: %v", err)
			}
			left.Store(2)
			if got, err := s.Get(t.Context(), "k/v", 100); err != nil || !bytes.Equal(got, want) {
				t.Errorf("get: %q, %v", got, err)
			}
			left.Store(2)
			if found := blobstest.Keys(t, s, "k"); len(found) != 1 {
				t.Errorf("list: %v", found)
			}
			left.Store(2)
			if err := s.Remove(t.Context(), "k/v", "k/w"); err != nil {
				t.Errorf("remove: %v", err)
			}
			left.Store(1 << 30)
			refused(t, "put, without end", s.Put(t.Context(), "k/v", want), "blobs_unavailable", "")
			if n := 1<<30 - left.Load(); n < 2 || n > 8 { // the transport has attempts of its own
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestChangedOnTheWay changes a byte of what is put: the store must notice.
func TestChangedOnTheWay(t *testing.T) {
	var left atomic.Int64
	s, _ := front(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && left.Add(-1) >= 0 {
			data, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			data[len(data)/2] ^= 1
			r.Body = io.NopCloser(bytes.NewReader(data))
		}
		return false
	})
	want := bytes.Repeat([]byte("data"), 1000)
	left.Store(1)
	if err := s.Put(t.Context(), "k/v", want); err != nil {
		t.Errorf("changed once: %v", err)
	}
	if got, err := s.Get(t.Context(), "k/v", 4000); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	left.Store(1 << 30)
	refused(t, "changed always", s.Put(t.Context(), "k/w", want), "blobs_unavailable", "")
	_, err := s.Get(t.Context(), "k/w", 4000)
	if errdef.CodeOf(err) != "blob_not_found" {
		t.Errorf("what was changed: %v", err)
	}
}

// TestPutCutOffWithin ends the ctx of a Put when half of its data has arrived.
func TestPutCutOffWithin(t *testing.T) {
	var stop atomic.Value // of the ctx; nothing is cut off before there is one
	s, bucket := front(t, func(w http.ResponseWriter, r *http.Request) bool {
		if cancel, ok := stop.Load().(context.CancelFunc); ok && r.Method == http.MethodPut {
			body := r.Body
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(body, 4<<20), reader(func([]byte) (int, error) {
				cancel()
				return 0, io.ErrUnexpectedEOF
			})), body}
		}
		return false
	})
	if err := s.Put(t.Context(), "k/old", []byte("old")); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"k/old", "k/new"} {
		ctx, cancel := context.WithCancel(t.Context())
		stop.Store(cancel)
		if err := s.Put(ctx, key, make([]byte, 8<<20)); !errors.Is(err, context.Canceled) {
			t.Errorf("put %s: %v", key, err)
		}
	}
	if got, err := s.Get(t.Context(), "k/old", 8<<20); err != nil || string(got) != "old" {
		t.Errorf("in the place of the old one are %d bytes, %v", len(got), err)
	}
	if found := blobstest.Keys(t, s, ""); len(found) != 1 {
		t.Errorf("there is %v", found)
	}
	if _, err := os.Stat(filepath.Join(bucket, "k", "new")); err == nil {
		t.Error("the bucket has the half")
	}
}

type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

// TestForeignObjects has objects in the bucket that no Put has made.
func TestForeignObjects(t *testing.T) {
	g := gateway(t)
	s := open(t, g.URL()+"&region=us-east-1")
	for _, name := range []string{"k/Upper", "k/.hidden", "k/with space", "outside"} {
		path := filepath.Join(g.Dir(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("x"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(t.Context(), "k/mine", nil); err != nil {
		t.Fatal(err)
	}
	if found := blobstest.Keys(t, s, "k"); len(found) != 1 {
		t.Errorf("listed: %v", found)
	}
	below := open(t, strings.Replace(g.URL(), "?", "/k/?", 1))
	if found := blobstest.Keys(t, below, ""); len(found) != 1 {
		t.Errorf("listed below a prefix: %v", found)
	}
	if name := below.String(); name != "bucket s3://blobs/k at http://"+g.Addr {
		t.Errorf("its name is %s", name)
	}
}
