package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
)

// Reference returns a reference to an image in full, as
// index.docker.io/library/python:3.12.
func Reference(ref string) (string, error) {
	r, err := parse(ref)
	if err != nil {
		return "", err
	}
	return r.Name(), nil
}

func parse(ref string) (name.Reference, error) {
	ref = strings.TrimSpace(ref)
	r, err := name.ParseReference(ref)
	if err == nil && ref == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, errdef.New(errdef.Invalid, "image_reference_invalid", "%.300q is no reference to an image: %v", ref, err).
			WithRemedy("use one such as python:3.12, ghcr.io/owner/name:tag, or name@sha256:...")
	}
	return r, nil
}

// fetchers is how many layers of one image are fetched at once.
const fetchers = 3

// Login is how somebody is known to a registry. It is used for one pull, and kept
// nowhere.
type Login struct{ User, Password string }

// LogValue keeps it out of logs.
func (Login) LogValue() slog.Value { return slog.StringValue("(a login)") }

// Pull fetches an image from its registry, with a login, or without one (nil) with
// the credentials that the usual configuration of Docker has for it
// (~/.docker/config.json, DOCKER_CONFIG, or podman's). Layers that are here already
// are not fetched. progress may be called by several goroutines at once; it may be
// nil.
//
// keep is called with the image while its layers cannot be removed. What it does
// not come to need may be removed afterwards.
func (s *Store) Pull(ctx context.Context, ref string, login *Login, progress func(Progress), keep func(Image) error) error {
	r, err := parse(ref)
	if err != nil {
		return err
	}
	err = s.pull(ctx, r, login, progress, keep)
	if err != nil {
		return fmt.Errorf("pull %s: %w", r.Name(), fromRegistry(r, err))
	}
	return nil
}

func (s *Store) pull(ctx context.Context, r name.Reference, login *Login, progress func(Progress), keep func(Image) error) error {
	repo := r.Context()
	plain := wayTo(repo, s.zone)
	defer plain.CloseIdleConnections()
	who, err := credentials(ctx, repo, login)
	if err != nil {
		return err
	}
	rt, err := transport.NewWithContext(ctx, repo.Registry, who, transport.NewRetry(bounded{plain}), []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return senseless(r, err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(rt)}
	img, digest, err := imageOf(r, options)
	if err != nil {
		return senseless(r, err)
	}
	manifest, err := img.Manifest()
	if err != nil {
		return senseless(r, err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		return senseless(r, err)
	}
	layers, err := sourcesOf(manifest, conf, func(d v1.Descriptor) func(context.Context, int64) (io.ReadCloser, error) {
		return blob{client: &http.Client{Transport: rt}, repo: repo, digest: d.Digest}.open
	})
	if err != nil {
		return err
	}
	made := Image{Ref: r.Name(), Digest: digest.String(), Source: repo.Digest(digest.String()).Name(), Platform: platformOf(conf), Config: configurationOf(conf)}
	return s.placeAll(ctx, made, layers, progress, keep)
}

// credentials returns as whom an image is fetched.
func credentials(ctx context.Context, repo name.Repository, login *Login) (authn.Authenticator, error) {
	if login != nil {
		return &authn.Basic{Username: login.User, Password: login.Password}, nil
	}
	who, err := authn.Resolve(ctx, authn.DefaultKeychain, repo)
	if err != nil {
		return nil, errdef.New(errdef.Invalid, "image_credentials", "the credentials for %s cannot be read: %w", repo.RegistryStr(), err).
			WithRemedy("look at ~/.docker/config.json of the user that the server runs as")
	}
	return who, nil
}

// imageOf asks for the manifest of an image, and for the one of this machine's
// platform where there are several.
func imageOf(r name.Reference, options []remote.Option) (v1.Image, v1.Hash, error) {
	desc, err := remote.Get(r, options...)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	if !desc.MediaType.IsIndex() {
		img, err := desc.Image()
		return img, desc.Digest, err
	}
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, v1.Hash{}, err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, v1.Hash{}, err
	}
	fit, err := choose(list, r.Name())
	if err != nil {
		return nil, v1.Hash{}, err
	}
	img, err := index.Image(fit.Digest)
	return img, fit.Digest, err
}

// choose returns the entry of a list that is for this machine.
func choose(list *v1.IndexManifest, what string) (v1.Descriptor, error) {
	var others []string
	for _, m := range list.Manifests {
		p := m.Platform
		if p == nil {
			if len(list.Manifests) == 1 {
				return m, nil // its configuration says what it is for
			}
			continue
		}
		if p.OS == "linux" && p.Architecture == goruntime.GOARCH {
			return m, nil
		}
		if p.OS != "unknown" { // attestations are of none
			others = append(others, p.String())
		}
	}
	slices.Sort(others)
	return v1.Descriptor{}, wrongPlatform(what, strings.Join(slices.Compact(others), ", "))
}

func wrongPlatform(what, has string) error {
	if has == "" {
		has = "no platform"
	}
	return errdef.New(errdef.Unsupported, "image_wrong_platform", "%s is for %s, and this server runs linux/%s", what, has, goruntime.GOARCH).
		WithRemedy("use an image for linux/%s; nothing is emulated", goruntime.GOARCH)
}

func platformOf(c *v1.ConfigFile) string { return c.OS + "/" + c.Architecture }

// mostLayers is below what the kernel mounts over each other, which leaves room
// for the layers that a sandbox writes.
const mostLayers = 256

// sourcesOf matches the layers of a manifest with the digests of their contents.
func sourcesOf(m *v1.Manifest, c *v1.ConfigFile, open func(v1.Descriptor) func(context.Context, int64) (io.ReadCloser, error)) ([]source, error) {
	if err := checkConfig(c, len(m.Layers)); err != nil {
		return nil, err
	}
	layers := make([]source, len(m.Layers))
	for i, d := range m.Layers {
		if !d.MediaType.IsLayer() {
			return nil, Invalid("it is no image of files: one of its layers is of type %.100q", string(d.MediaType))
		}
		if len(d.URLs) > 0 {
			return nil, Invalid("layer %s is kept elsewhere, which is not supported", d.Digest)
		}
		if d.Digest.Algorithm != "sha256" || d.Size <= 0 {
			return nil, Invalid("layer %s has no size and SHA-256", d.Digest)
		}
		layers[i] = source{diffID: c.RootFS.DiffIDs[i], digest: d.Digest, size: d.Size, open: open(d)}
	}
	return layers, nil
}

// checkConfig refuses a configuration that is not of a runnable image with so
// many layers.
func checkConfig(c *v1.ConfigFile, layers int) error {
	if len(c.RootFS.DiffIDs) != layers {
		return Invalid("its manifest has %d layers, and its configuration %d", layers, len(c.RootFS.DiffIDs))
	}
	if layers == 0 {
		return Invalid("it has no layers")
	}
	if layers > mostLayers {
		return tooLarge("an image of %d layers has more than %d", layers, mostLayers)
	}
	for _, d := range c.RootFS.DiffIDs {
		if d.Algorithm != "sha256" || !layerID.MatchString(d.Hex) {
			return Invalid("%.100q is not the SHA-256 of a layer", d.String())
		}
	}
	return nil
}

// placeAll unpacks the layers of an image, a few at once, and hands the image
// over.
func (s *Store) placeAll(ctx context.Context, img Image, layers []source, progress func(Progress), keep func(Image) error) error {
	if progress == nil {
		progress = func(Progress) {}
	}
	if img.Platform != "linux/"+goruntime.GOARCH {
		return wrongPlatform("the image", img.Platform)
	}
	img.Layers = make([]Layer, len(layers))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(fetchers)
	for i, l := range layers {
		defer s.pin(l.diffID.Hex)()
		group.Go(func() (err error) {
			if err := ctx.Err(); err != nil {
				return err
			}
			img.Layers[i], err = s.place(ctx, l, progress)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return keep(img)
}

// blob is a layer in a registry.
type blob struct {
	client *http.Client
	repo   name.Repository
	digest v1.Hash
}

// open asks for a blob from an offset on. Registries, and what they redirect to,
// need not support that: then what is known is read again, and passed over.
func (b blob) open(ctx context.Context, offset int64) (io.ReadCloser, error) {
	url := fmt.Sprintf("%s://%s/v2/%s/blobs/%s", b.repo.Scheme(), b.repo.RegistryStr(), b.repo.RepositoryStr(), b.digest)
	req, err := http.NewRequestWithContext(context.WithValue(ctx, layerRequest{}, true), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		resp.Body.Close()
		return nil, fromRegistry(b.repo, err)
	}
	in := &watched{ReadCloser: resp.Body}
	in.stalled = time.AfterFunc(stallAfter, func() { _ = resp.Body.Close() })
	skip := int64(0)
	if resp.StatusCode == http.StatusOK {
		skip = offset
	} else if want := fmt.Sprintf("bytes %d-", offset); !strings.HasPrefix(resp.Header.Get("Content-Range"), want) {
		in.Close()
		return nil, damaged("the registry was asked for bytes from %d on, and sent %.100q", offset, resp.Header.Get("Content-Range"))
	}
	if _, err := io.CopyN(io.Discard, in, skip); err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

// stallAfter is how long a registry may send nothing before the connection
// counts as broken.
const stallAfter = time.Minute

// watched is a body that is closed when nothing comes for long.
type watched struct {
	io.ReadCloser
	stalled *time.Timer
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	w.stalled.Reset(stallAfter)
	return w.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (w *watched) Close() error {
	w.stalled.Stop()
	return w.ReadCloser.Close()
}

// senseless gives an error of what a registry says of an image its class. What is
// of no other is that it makes no sense.
func senseless(what fmt.Stringer, err error) error {
	err = fromRegistry(what, err)
	if _, ok := errors.AsType[*errdef.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return Invalid("what the registry sends for %s describes no image: %w", what, brief{err})
}

// brief is an error that a registry has written, in which there may be a whole page.
type brief struct{ error }

// Error implements error.
func (e brief) Error() string { return human.Line(e.error.Error(), 500) }

// Unwrap returns the error itself.
func (e brief) Unwrap() error { return e.error }

// fromRegistry gives an error of a registry its class.
func fromRegistry(what fmt.Stringer, err error) error {
	if _, ok := errors.AsType[*errdef.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	err = brief{err}
	// Before the others: a registry in a private network is asked without TLS then,
	// and what it answers to that says little.
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return errdef.New(errdef.Unfit, "image_registry_untrusted", "this server does not trust the certificate of the registry of %s: %w", what, e).
			WithRemedy("add the authority that signed it to the trusted ones of the server's host (on Debian: a .crt file in /usr/local/share/ca-certificates, then update-ca-certificates), and restart the server")
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		switch code := e.StatusCode; {
		case code == http.StatusNotFound:
			return errdef.New(errdef.NotFound, "image_not_found", "the registry has no %s: %w", what, err).
				WithRemedy("check the name and the tag; a registry may also say so of a private image")
		case code == http.StatusUnauthorized || code == http.StatusForbidden:
			return errdef.New(errdef.Forbidden, "image_denied", "the registry refuses %s to this server: %w", what, err).
				WithRemedy("log in with docker login as the user that the server runs as, or check the name: registries refuse what does not exist, too")
		case code == http.StatusTooManyRequests || code >= 500:
			return errdef.New(errdef.Unavailable, "image_unavailable", "the registry cannot serve %s now: %w", what, err).
				WithRemedy("try again later; layers that were finished are not fetched again")
		}
		return Invalid("the registry refuses %s: %w", what, err)
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errdef.New(errdef.Unavailable, "image_unavailable", "the registry of %s cannot be reached: %w", what, err).
			WithRemedy("check the name, the network and the proxy settings of the server; layers that were finished are not fetched again")
	}
	return err
}
