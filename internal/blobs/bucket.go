package blobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/drowse-dev/drowse/internal/errdef"
)

const (
	// attempts are those of a call.
	attempts = 4
	// longestPrefix is that of a store's URL: see longestKey.
	longestPrefix = 200
)

// waits are how long a bucket waits.
type waits struct {
	call   time.Duration // for all attempts of a call
	answer time.Duration // for the first byte of one, from the last of its request on
	pause  time.Duration // after the first attempt; each of the others is four times as long
}

var usual = waits{call: 2 * time.Minute, answer: 30 * time.Second, pause: 100 * time.Millisecond}

// bucket has each blob in an object of a bucket, by its key behind a prefix.
type bucket struct {
	api    minio.Core
	name   string
	prefix string // of keys; "" or with "/" at the end
	where  string // the endpoint, for people
	waits  waits
	seeks  bool // its region, which an answer may name
}

func (b *bucket) String() string {
	return fmt.Sprintf("bucket s3://%s at %s", strings.TrimSuffix(b.name+"/"+b.prefix, "/"), b.where)
}

// openBucket makes no request but those for credentials. The bucket is returned also with an
// error that may pass: it asks for credentials again with each call.
func openBucket(ctx context.Context, from string, waits waits) (*bucket, error) {
	b, endpoint, region, err := parseBucket(from)
	if err != nil {
		return nil, err
	}
	b.waits, b.seeks = waits, region == ""
	transport, err := minio.DefaultTransport(endpoint.Scheme == "https")
	if err != nil {
		return nil, unusable("%s: %v", b, err)
	}
	transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	transport.ResponseHeaderTimeout = waits.answer

	machine := &role{IAM: credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}}}
	creds := credentials.New(&found{credentials.Chain{Providers: []credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, machine,
	}}, machine})
	lookup := minio.BucketLookupPath
	if s3utils.IsAmazonEndpoint(*endpoint) {
		lookup = minio.BucketLookupAuto
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds:        creds,
		Secure:       endpoint.Scheme == "https",
		Transport:    transport,
		Region:       region,
		BucketLookup: lookup,
		MaxRetries:   1, // its own would let two attempts read the data of a Put at once
	})
	if err != nil {
		return nil, unusable("%s: %v", b, err).WithRemedy("correct its URL")
	}
	b.api = minio.Core{Client: client}
	if _, err := creds.GetWithContext(&credentials.CredContext{Context: ctx}); err != nil {
		if ctx.Err() != nil {
			return b, ended(ctx, "no credentials for "+b.String())
		}
		return b, unavailable(b, "no blob can be stored or read", explainRequest(err))
	}
	return b, nil
}

// parseBucket returns the bucket of a URL, with its endpoint and its region, which is
// empty where it has to be found out. Errors have nothing of a malformed URL: secrets may
// be in it.
func parseBucket(from string) (b *bucket, endpoint *url.URL, region string, err error) {
	refuse := func(format string, args ...any) (*bucket, *url.URL, string, error) {
		return nil, nil, "", unusable("a bucket: "+format, args...).WithRemedy("give s3://BUCKET[/PREFIX][?endpoint=URL&region=REGION]")
	}
	const noSecrets = "credentials do not belong in its URL, which is shown and logged: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
	u, err := url.Parse(from)
	switch {
	case strings.Contains(from, "@"): // in a key or an endpoint it has no place
		return refuse(noSecrets)
	case err != nil || u.Scheme != "s3" || u.Opaque != "" || u.Fragment != "":
		return refuse("its URL is malformed")
	case s3utils.CheckValidBucketNameStrict(u.Host) != nil:
		return refuse("%.100q cannot be the name of one", u.Host)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return refuse("its URL is malformed")
	}
	for name, values := range query {
		switch {
		case name != "endpoint" && name != "region":
			return refuse("its URL has a parameter %.50q, and can have endpoint and region; "+noSecrets, name)
		case len(values) > 1:
			return refuse("its URL has more than one %s", name)
		}
	}
	prefix := strings.Trim(u.Path, "/")
	if err := CheckKey(prefix); err != nil && prefix != "" || len(prefix) > longestPrefix {
		return refuse(`the prefix of its keys has names of a-z, 0-9, "_", "-" and ".", which none begins with, and %d bytes at most`, longestPrefix)
	}
	if prefix != "" {
		prefix += "/"
	}
	region = cmp.Or(query.Get("region"), os.Getenv("AWS_REGION"))
	if strings.Trim(region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
		return refuse("its region is malformed")
	}
	at := cmp.Or(query.Get("endpoint"), os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
	if at == "" {
		b := &bucket{name: u.Host, prefix: prefix, where: "AWS"}
		return b, &url.URL{Scheme: "https", Host: "s3.amazonaws.com"}, region, nil
	}
	endpoint, err = url.Parse(at)
	switch {
	case err == nil && endpoint.User != nil:
		return refuse(noSecrets)
	case err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Host == "" ||
		strings.Trim(endpoint.Path, "/") != "" || endpoint.RawQuery != "" || endpoint.Fragment != "":
		return refuse("its endpoint is not of the form http[s]://HOST[:PORT]")
	}
	if !s3utils.IsAmazonEndpoint(*endpoint) {
		region = cmp.Or(region, "us-east-1") // what those take that have none
	}
	return &bucket{name: u.Host, prefix: prefix, where: endpoint.Scheme + "://" + endpoint.Host}, endpoint, region, nil
}

// call makes a request, several times if need be. What f returns as an *errdef.Error is
// no failure of the request.
func (b *bucket) call(ctx context.Context, state string, f func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, b.waits.call)
	defer cancel()
	for n, pause := 1, b.waits.pause; ; n, pause = n+1, 4*pause {
		err := f(bounded)
		if _, ok := err.(*errdef.Error); ok || err == nil {
			return err
		}
		if ctx.Err() != nil {
			return ended(ctx, state)
		}
		why := explainRequest(err)
		// The library notes the region that an answer names, and goes there the next time.
		final := why.lasting && !(b.seeks && minio.ToErrorResponse(err).Region != "")
		if n == attempts || final || bounded.Err() != nil {
			return unavailable(b, state, why)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-bounded.Done():
		}
	}
}

func (b *bucket) Put(ctx context.Context, key string, data []byte) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	sum := sha256.Sum256(data) // the store compares it with what arrives
	return b.call(ctx, "blob "+key+" may not be stored", func(ctx context.Context) error {
		from := newSource(data)
		defer from.end()
		_, err := b.api.PutObject(ctx, b.name, b.prefix+key, from, int64(len(data)), "", hex.EncodeToString(sum[:]),
			minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true})
		return err
	})
}

func (b *bucket) Get(ctx context.Context, key string, most int64) ([]byte, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	var data []byte
	err := b.call(ctx, "blob "+key+" cannot be read", func(ctx context.Context) error {
		body, info, _, err := b.api.GetObject(ctx, b.name, b.prefix+key, minio.GetObjectOptions{})
		if codeOf(err) == minio.NoSuchKey {
			return notFound(b, key)
		} else if err != nil {
			return err
		}
		defer body.Close()
		if info.Size > most {
			return tooLarge(b, key, most)
		}
		if info.Size < 0 { // the API says that an answer has a length
			return errors.New("the store does not say how large a blob is")
		}
		data = make([]byte, info.Size)
		_, err = io.ReadFull(body, data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

func (b *bucket) Remove(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return err
		}
	}
	return b.call(ctx, "some blobs may not be removed", func(ctx context.Context) error {
		results, err := b.api.RemoveObjectsWithIter(ctx, b.name, func(yield func(minio.ObjectInfo) bool) {
			for _, key := range keys {
				if !yield(minio.ObjectInfo{Key: b.prefix + key}) {
					return
				}
			}
		}, minio.RemoveObjectsOptions{})
		if err != nil {
			return err
		}
		for r := range results {
			if r.Err != nil && codeOf(r.Err) != minio.NoSuchKey {
				return r.Err
			}
		}
		return ctx.Err() // the library says nothing of a ctx that is over
	})
}

func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[Blob, error] {
	return func(yield func(Blob, error) bool) {
		if err := CheckKey(prefix); err != nil && prefix != "" {
			yield(Blob{}, err)
			return
		}
		below := b.prefix
		if prefix != "" {
			below += prefix + "/"
		}
		after := "" // the last object that was listed: the API has them in order
		for done := false; !done; {
			var page []minio.ObjectInfo
			err := b.call(ctx, "the blobs cannot be listed", func(ctx context.Context) (err error) {
				page, done, err = b.page(ctx, below, after)
				return err
			})
			if err != nil {
				yield(Blob{}, err)
				return
			}
			for _, o := range page {
				after = o.Key
				key, ok := strings.CutPrefix(o.Key, b.prefix)
				if !ok || CheckKey(key) != nil {
					continue // no Put has made it
				}
				if !yield(Blob{key, o.Size, o.LastModified}, nil) {
					return
				}
			}
		}
	}
}

// page returns the objects that one request gives, and whether these are the last.
func (b *bucket) page(ctx context.Context, below, after string) (page []minio.ObjectInfo, last bool, err error) {
	const size = 1000
	no := false
	options := minio.ListObjectsOptions{Prefix: below, Recursive: true, StartAfter: after, MaxKeys: size, FetchOwner: &no}
	for o := range b.api.ListObjectsIter(ctx, b.name, options) {
		if o.Err != nil {
			return nil, false, o.Err
		}
		if page = append(page, o); len(page) == size {
			return page, false, ctx.Err()
		}
	}
	return page, true, ctx.Err()
}

// codeOf returns the code of what a store answers; "" for other errors.
func codeOf(err error) string {
	e, _ := errors.AsType[minio.ErrorResponse](err)
	return e.Code
}

func aboutTLS(err error) bool {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	return unknown || name || invalid || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// explainRequest says what the failure of a request means for blobs.
func explainRequest(err error) *cause {
	if e, ok := errors.AsType[minio.ErrorResponse](err); ok {
		return explainAnswer(e)
	}
	c := &cause{err: err, why: innermost(err), remedy: "check that the endpoint runs, and that this server reaches it"}
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, errNoCredentials):
		c.remedy, c.lasting = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the server's environment", true
	case errors.Is(err, errNoRole):
		c.remedy = "see whether what gives the role's credentials runs, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the server's environment"
	case aboutTLS(err):
		c.remedy, c.lasting = "have the endpoint's certificate signed by an authority that this machine knows, or correct the endpoint", true
	case isNet && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		c.why = "it did not answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		c.why = "it broke off"
	}
	return c
}

// innermost returns the text of an error without the URL that it is about.
func innermost(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return bounded(err.Error())
}

// bounded is a text of another program, which may be anything.
func bounded(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	return strings.ToValidUTF8(text[:min(len(text), 300)], "")
}

// explainAnswer says what an error of the storage means. What it does not know may pass.
func explainAnswer(e minio.ErrorResponse) *cause {
	c := &cause{err: e, lasting: true}
	switch e.Code {
	case minio.NoSuchBucket:
		c.why, c.remedy = "there is no such bucket", "create it, or name another"
	case "InvalidAccessKeyId", "XAdminUserNotFound": // the latter is versitygw's
		c.why, c.remedy = "it does not know the access key of the credentials", "give the server credentials that are valid there"
	case "SignatureDoesNotMatch":
		c.why, c.remedy = "the secret key of the credentials is wrong", "give the server the secret key of its access key"
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired":
		c.why, c.remedy = "the session of the credentials is over or invalid ("+e.Code+")", "give the server new credentials"
	case "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden":
		c.why = "the credentials do not allow it (" + e.Code + ")"
		c.remedy = "allow them s3:PutObject, s3:GetObject, s3:DeleteObject and s3:ListBucket in the bucket"
	case "RequestTimeTooSkewed":
		c.why, c.remedy = "its clock and that of this machine differ too much", "set this machine's clock"
	case "AuthorizationHeaderMalformed", "InvalidRegion", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException":
		c.why = "the bucket is in another region or at another endpoint (" + e.Code + ")"
		if e.Region != "" {
			c.why = fmt.Sprintf("the bucket is in the region %.40q", e.Region)
		}
		c.remedy = "name the bucket's region and endpoint in its URL, or set AWS_REGION"
	default:
		c.why = bounded(fmt.Sprintf("it answers %s (HTTP status %d): %s", e.Code, e.StatusCode, e.Error()))
		c.remedy, c.lasting = "see the documentation and the state of the storage", false
	}
	return c
}

var errNoCredentials = errors.New("no credentials were found in the environment, the shared credentials file, or a role of this machine")

// errNoRole is errNoCredentials where there is a role.
var errNoRole = errors.New("the role of this machine gives no credentials")

// found is a chain of providers one of which must have credentials: no request is made
// without.
type found struct {
	credentials.Chain
	role *role
}

func (f *found) Retrieve() (credentials.Value, error) { return f.RetrieveWithCredContext(nil) }

func (f *found) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := f.Chain.RetrieveWithCredContext(cc)
	switch {
	case err != nil || v.AccessKeyID != "" && v.SecretAccessKey != "":
	case f.role.exists():
		err = fmt.Errorf("%w: %s", errNoRole, innermost(f.role.failed))
	default:
		err = errNoCredentials
	}
	return v, err
}

// role is that of the machine or the container. It keeps why it gave no credentials, which
// the chain does not tell.
type role struct {
	credentials.IAM
	failed error
}

func (r *role) Retrieve() (credentials.Value, error) { return r.RetrieveWithCredContext(nil) }

func (r *role) RetrieveWithCredContext(cc *credentials.CredContext) (v credentials.Value, err error) {
	if r.failed = nil; !named() && os.Getenv("AWS_EC2_METADATA_DISABLED") == "true" {
		return v, errNoCredentials
	}
	if v, err = r.IAM.RetrieveWithCredContext(cc); err == nil && (v.AccessKeyID == "" || v.SecretAccessKey == "") {
		err = errors.New("its answer has none")
	}
	r.failed = err
	return v, err
}

// exists reports whether there is a role that gave no credentials: the environment names it,
// or the machine has a service for that, which has answered.
func (r *role) exists() bool {
	_, silent := errors.AsType[*url.Error](r.failed)
	return r.failed != nil && (named() || !silent)
}

// named reports whether the environment names a role.
func named() bool {
	return cmp.Or(os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE"), os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")) != ""
}
