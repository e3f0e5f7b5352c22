package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	goruntime "runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// Part writes one layer of an image as a tar archive, with the same bytes each time.
type Part func(ctx context.Context, out io.Writer) error

// Outgoing is an image that leaves this server.
type Outgoing struct {
	Config  Configuration
	Labels  map[string]string
	MadeAt  time.Time
	Parts   []Part   // bottom first
	History []string // what each part is
	// Check is called when everything has been read, and before the image gets its
	// name. After an error it does not get one.
	Check func() error
}

// Published is an image that has left.
type Published struct {
	Ref    string           `json:"ref,omitempty"` // with the digest; empty for an archive
	Digest string           `json:"digest"`
	Layers []PublishedLayer `json:"layers"` // bottom first
}

// PublishedLayer is one of its layers.
type PublishedLayer struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"` // as it is transferred
	Bytes  int64  `json:"bytes"`
}

// The states of a layer that leaves.
const (
	Packing State = "packing"
	Sending State = "sending"
	Sent    State = "sent"
)

// Packed is an outgoing image whose digests are known.
type Packed struct {
	o      Outgoing
	image  v1.Image
	layers []*packedLayer
	digest v1.Hash
}

// Pack reads an image once, to learn its digests and sizes. Nothing is kept on
// disk: it is read again when it is sent.
func Pack(ctx context.Context, o Outgoing, progress func(Progress)) (*Packed, error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	p := &Packed{o: o}
	conf := &v1.ConfigFile{
		Architecture: goruntime.GOARCH, OS: "linux", Created: v1.Time{Time: o.MadeAt.UTC()}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env: o.Config.Env, WorkingDir: o.Config.WorkingDir, User: o.Config.User, Entrypoint: o.Config.Entrypoint, Cmd: o.Config.Cmd, Labels: o.Labels,
		},
	}
	for _, port := range o.Config.ExposedPorts {
		if conf.Config.ExposedPorts == nil {
			conf.Config.ExposedPorts = map[string]struct{}{}
		}
		conf.Config.ExposedPorts[port] = struct{}{}
	}
	img, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), conf)
	if err != nil {
		return nil, err
	}
	for i, part := range o.Parts {
		l, err := pack(ctx, part, func(done int64) {
			progress(Progress{Layer: fmt.Sprintf("%d of %d", i+1, len(o.Parts)), State: Packing, Done: done})
		})
		if err != nil {
			return nil, err
		}
		p.layers = append(p.layers, l)
		img, err = mutate.Append(img, mutate.Addendum{
			Layer: l, MediaType: l.mediaType, History: v1.History{Created: v1.Time{Time: o.MadeAt.UTC()}, CreatedBy: o.History[i]},
		})
		if err != nil {
			return nil, err
		}
	}
	if p.digest, err = img.Digest(); err != nil {
		return nil, err
	}
	p.image = img
	return p, o.check()
}

func (o Outgoing) check() error {
	if o.Check == nil {
		return nil
	}
	return o.Check()
}

// published says what the image is.
func (p *Packed) published() Published {
	out := Published{Digest: p.digest.String()}
	for _, l := range p.layers {
		out.Layers = append(out.Layers, PublishedLayer{Digest: l.digest.String(), Size: l.size, Bytes: l.bytes})
	}
	return out
}

// packedLayer is a layer whose digests are known.
type packedLayer struct {
	ctx       context.Context // of the call that sends it: v1.Layer has none
	part      Part
	mediaType types.MediaType
	digest    v1.Hash
	diffID    v1.Hash
	size      int64
	bytes     int64 // of the archive, uncompressed
	progress  func(Progress)
}

// suspicious is the ratio of uncompressed to compressed bytes from which a layer is
// sent as it is. Readers take layers that expand too far for attacks: see
// Limits.Ratio.
const suspicious = 100

// pack reads a part and learns its digests.
func pack(ctx context.Context, part Part, progress func(done int64)) (*packedLayer, error) {
	plain, packed := newMeter(progress), newMeter(nil)
	z, err := gzip.NewWriterLevel(packed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(part(ctx, io.MultiWriter(plain, z)), z.Close()); err != nil {
		return nil, err
	}
	l := &packedLayer{part: part, mediaType: types.OCILayer, diffID: plain.digest(), digest: packed.digest(), size: packed.n, bytes: plain.n}
	if plain.n > RatioFrom && plain.n/suspicious > packed.n {
		l.mediaType, l.digest, l.size = types.OCIUncompressedLayer, l.diffID, plain.n
	}
	return l, nil
}

// meter counts and digests what is written to it.
type meter struct {
	h        hash.Hash
	n        int64
	progress func(int64)
	told     time.Time
}

func newMeter(progress func(int64)) *meter { return &meter{h: sha256.New(), progress: progress} }

// Write implements io.Writer.
func (m *meter) Write(p []byte) (int, error) {
	m.n += int64(len(p))
	if m.progress != nil && time.Since(m.told) > progressEvery {
		m.told = time.Now()
		m.progress(m.n)
	}
	return m.h.Write(p)
}

func (m *meter) digest() v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", m.h.Sum(nil))}
}

// Digest implements v1.Layer.
func (l *packedLayer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID implements v1.Layer.
func (l *packedLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }

// Size implements v1.Layer.
func (l *packedLayer) Size() (int64, error) { return l.size, nil }

// MediaType implements v1.Layer.
func (l *packedLayer) MediaType() (types.MediaType, error) { return l.mediaType, nil }

// Uncompressed implements v1.Layer.
func (l *packedLayer) Uncompressed() (io.ReadCloser, error) { return l.read(l.part), nil }

// Compressed implements v1.Layer: it reads the part again. What is not what was
// packed is not passed on to its end.
func (l *packedLayer) Compressed() (io.ReadCloser, error) {
	return l.read(func(ctx context.Context, out io.Writer) error {
		m := newMeter(func(done int64) { l.tell(Sending, done) })
		if err := l.encode(ctx, &upTo{out: io.MultiWriter(m, out), left: l.size - 1}, out, m); err != nil {
			return err
		}
		l.tell(Sent, l.size)
		return nil
	}), nil
}

func (l *packedLayer) tell(s State, done int64) {
	if l.progress != nil {
		l.progress(Progress{Layer: l.digest.String(), State: s, Done: done, Size: l.size})
	}
}

// encode writes the layer, but keeps its last byte until it is known to be what was
// packed.
func (l *packedLayer) encode(ctx context.Context, held *upTo, out io.Writer, m *meter) error {
	if l.mediaType == types.OCILayer {
		z, err := gzip.NewWriterLevel(held, gzip.BestSpeed)
		if err == nil {
			err = errors.Join(l.part(ctx, z), z.Close())
		}
		if err != nil {
			return err
		}
	} else if err := l.part(ctx, held); err != nil {
		return err
	}
	_, _ = m.Write(held.rest)
	if m.digest() != l.digest {
		return errdef.New(errdef.Conflict, "files_changed", "the files have changed while they were sent").
			WithRemedy("try again; a template of the host's own system changes with the host's packages")
	}
	_, err := out.Write(held.rest)
	return err
}

// upTo passes so many bytes on, and keeps the rest, of which there should be one.
type upTo struct {
	out  io.Writer
	left int64
	rest []byte
}

// Write implements io.Writer.
func (u *upTo) Write(p []byte) (int, error) {
	n := min(u.left, int64(len(p)))
	if n > 0 {
		if m, err := u.out.Write(p[:n]); err != nil {
			return m, err
		}
		u.left -= n
	}
	if len(u.rest)+len(p)-int(n) > 1 {
		return 0, errdef.New(errdef.Conflict, "files_changed", "the files have changed while they were sent").
			WithRemedy("try again; a template of the host's own system changes with the host's packages")
	}
	u.rest = append(u.rest, p[n:]...)
	return len(p), nil
}

// read runs a part for a reader. Closing the reader ends the part, and waits for it.
func (l *packedLayer) read(part Part) io.ReadCloser {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(l.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.CloseWithError(part(ctx, w)) // nil ends it in good order
	}()
	return &partReader{PipeReader: r, cancel: cancel, done: done}
}

type partReader struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

// Close implements io.Closer.
func (p *partReader) Close() error {
	p.cancel()
	err := p.PipeReader.Close()
	<-p.done
	return err
}

// with gives the layers the context of a call.
func (p *Packed) with(ctx context.Context, progress func(Progress)) {
	for _, l := range p.layers {
		l.ctx, l.progress = ctx, progress
	}
}

// taggable returns the reference that an image can be given: a digest cannot be
// chosen.
func taggable(ref string) (name.Tag, error) {
	r, err := parse(ref)
	if err != nil {
		return name.Tag{}, err
	}
	tag, ok := r.(name.Tag)
	if !ok {
		return tag, errdef.New(errdef.Invalid, "image_reference_invalid", "%.300q names an image by its digest, which follows from what is in it", ref).
			WithRemedy("use a tag, such as name:1")
	}
	return tag, nil
}

// CheckTag judges a reference before anything is read for it.
func CheckTag(ref string) error {
	_, err := taggable(ref)
	return err
}

// Push sends an image to a registry, with a login, or without one (nil) with the
// credentials that Pull would use. Layers that the registry has are not sent. The
// tag is set last.
func (p *Packed) Push(ctx context.Context, ref string, login *Login, progress func(Progress)) (Published, error) {
	tag, err := taggable(ref)
	if err != nil {
		return Published{}, err
	}
	if err := p.push(ctx, tag, login, progress); err != nil {
		return Published{}, fmt.Errorf("push %s: %w", tag.Name(), toRegistry(tag, err))
	}
	out := p.published()
	out.Ref = tag.Context().Digest(out.Digest).Name()
	return out, nil
}

func (p *Packed) push(ctx context.Context, tag name.Tag, login *Login, progress func(Progress)) error {
	plain := wayTo(tag.Context(), egress.ZoneOf)
	dial := plain.DialContext
	plain.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return impatient{conn}, nil
	}
	defer plain.CloseIdleConnections()
	who, err := credentials(ctx, tag.Context(), login)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.with(ctx, progress)
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(bounded{plain}), remote.WithAuth(who), remote.WithJobs(1)}
	for _, l := range p.layers {
		if err := remote.WriteLayer(tag.Context(), l, options...); err != nil {
			return err
		}
		l.tell(Sent, l.size)
	}
	if err := p.o.check(); err != nil {
		return err
	}
	if err := remote.Write(tag, p.image, options...); err != nil {
		return err
	}
	got, err := remote.Get(tag, options...)
	if err != nil {
		return err
	}
	if got.Digest != p.digest {
		return errdef.New(errdef.Unavailable, "image_unavailable", "the registry was sent %s and says that %s is %s", p.digest, tag.Name(), got.Digest).
			WithRemedy("somebody may have pushed to the same tag: try again, or use another tag")
	}
	return nil
}

// impatient is a connection whose writes fail when the other side takes nothing for
// long.
type impatient struct{ net.Conn }

// Write implements net.Conn.
func (c impatient) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(stallAfter)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// toRegistry gives an error of a push its class.
func toRegistry(what fmt.Stringer, err error) error {
	err = fromRegistry(what, err)
	if e, ok := errors.AsType[*errdef.Error](err); ok && e.Code == "image_denied" {
		return errdef.New(errdef.Forbidden, "image_denied", "%s", e.Message).
			WithRemedy("log in with docker login as the user that the server runs as; the account must be allowed to write to this repository")
	}
	return err
}

// Save writes an image as a tar of an OCI image layout, which names it by ref if
// that is not empty.
func (p *Packed) Save(ctx context.Context, out io.Writer, ref string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.with(ctx, nil)
	t := &layoutWriter{tar: tar.NewWriter(out), at: p.o.MadeAt, done: map[string]bool{}}
	manifest, err := p.image.RawManifest()
	if err != nil {
		return err
	}
	conf, err := p.image.RawConfigFile()
	if err != nil {
		return err
	}
	m, err := p.image.Manifest()
	if err != nil {
		return err
	}
	desc := v1.Descriptor{
		MediaType: m.MediaType, Digest: p.digest, Size: int64(len(manifest)),
		Platform: &v1.Platform{OS: "linux", Architecture: goruntime.GOARCH},
	}
	if ref != "" {
		desc.Annotations = map[string]string{refAnnotation: ref}
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{desc}})
	if err != nil {
		return err
	}
	if err := t.file(layoutName, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	for _, l := range p.layers {
		if err := t.layer(l); err != nil {
			return err
		}
	}
	if err := p.o.check(); err != nil {
		return err
	}
	err = errors.Join(t.file(blobName(m.Config.Digest), conf), t.file(blobName(p.digest), manifest), t.file(indexName, index))
	if err != nil {
		return err
	}
	return t.tar.Close()
}

// layoutWriter writes an archive.
type layoutWriter struct {
	tar  *tar.Writer
	at   time.Time
	done map[string]bool
}

func (t *layoutWriter) head(name string, size int64) error {
	return t.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: t.at.Truncate(time.Second)})
}

func (t *layoutWriter) file(name string, data []byte) error {
	if err := t.head(name, int64(len(data))); err != nil {
		return err
	}
	_, err := io.Copy(t.tar, bytes.NewReader(data))
	return err
}

// layer writes a layer, once: two may be the same.
func (t *layoutWriter) layer(l *packedLayer) error {
	name := blobName(l.digest)
	if t.done[name] {
		return nil
	}
	t.done[name] = true
	if err := t.head(name, l.size); err != nil {
		return err
	}
	in, err := l.Compressed()
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(t.tar, in)
	return err
}
