// Command several is what several servers need beside themselves: a database, and a load
// balancer that knows nothing of sandboxes, and sends each request to any of them.
//
// It writes the URL of a new PostgreSQL database to the file "database" of a directory, and
// then passes on what comes to an address until it is killed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

func main() {
	dir := flag.String("dir", ".", "the `directory` to write the file into")
	listen := flag.String("listen", "127.0.0.1:4000", "the `address` to serve")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: several [flags] URL...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(*dir, *listen, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "several:", err)
		os.Exit(1)
	}
}

func run(dir, listen string, servers []string) (err error) {
	var to []*url.URL
	for _, server := range servers {
		u, err := url.Parse(server)
		if err != nil {
			return err
		}
		to = append(to, u)
	}
	if len(to) == 0 {
		return errors.New("give the URLs of servers")
	}
	pg, err := pgtest.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()
	_, database, err := pg.Create()
	if err != nil {
		return err
	}
	if err := durable.Replace(filepath.Join(dir, "database"), []byte(database), 0o600); err != nil {
		return err
	}
	return http.ListenAndServe(listen, balance(to))
}

// balance returns what passes each request on to one of the servers, as it is.
func balance(to []*url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			server := to[rand.IntN(len(to))]
			p.Out.URL.Scheme, p.Out.URL.Host = server.Scheme, server.Host
			p.Out.URL.RawQuery, p.Out.Host = p.In.URL.RawQuery, p.In.Host
		},
		// What has been idle for long the server may be about to close.
		Transport:     &http.Transport{IdleConnTimeout: 5 * time.Second, MaxIdleConnsPerHost: 100, DisableCompression: true},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				log.Printf("%s %s: %v", r.Method, r.URL.Path, err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // answers may begin before the request's end
		proxy.ServeHTTP(w, r)
	})
}
