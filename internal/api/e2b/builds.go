package e2b

import (
	"bytes"
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/template"
)

// Builds makes templates of steps. A template or build that is unknown is an
// errdef.NotFound everywhere.
type Builds interface {
	BuiltTemplates
	BuildFiles
	// Request makes a template, or takes the one that the key has under that name, and a
	// build that waits.
	Request(req build.Request) (build.Template, build.Build, error)
	Start(ctx context.Context, template, id string, r build.Recipe) error
	// Progress returns a build, and up to most lines of its log from an offset.
	Progress(template, id string, offset, most int) (build.Progress, error)
}

// BuiltTemplates is the templates that were made of steps.
type BuiltTemplates interface {
	// Template returns one by its id, or by its name among those of an API key.
	Template(key, ref string) (build.Template, error)
	Templates() []build.Template
	Delete(ctx context.Context, id string) error
	Tag(ctx context.Context, id, from string, tags []string) (build string, err error)
	Untag(ctx context.Context, id string, tags []string) error
}

// BuildFiles is the files that steps copy.
type BuildFiles interface {
	HasFiles(template, hash string) (bool, error)
	PutFiles(ctx context.Context, u build.Upload) error
}

// The bodies of builds.
var (
	requestBody = body.Vocabulary{
		{Name: "name", Spelled: []body.Spelled{body.AsText.As("name alias")}},
		{Name: "tags", Spelled: []body.Spelled{body.AsRules.As("tags")}},
		{Name: "cpus", Spelled: []body.Spelled{body.AsCPUs.As("cpuCount cpu_count")}},
		{Name: "memoryMiB", Spelled: []body.Spelled{body.AsCount.As("memoryMB memory_mb")}},
		{Name: "minFreeDiskMb", Refused: true, Spelled: []body.Spelled{asNoGrowth.As("minFreeDiskMb min_free_disk_mb")}},
		{Name: "teamID", Spelled: []body.Spelled{body.AsText.As("teamID")}}, // there is one
	}
	startBody = body.Vocabulary{
		{Name: "fromImage", Spelled: []body.Spelled{body.AsText.As("fromImage")}},
		{Name: "fromTemplate", Spelled: []body.Spelled{body.AsText.As("fromTemplate")}},
		{Name: "fromImageRegistry", Spelled: []body.Spelled{asLogin.As("fromImageRegistry")}},
		{Name: "force", Spelled: []body.Spelled{body.AsFlag.As("force")}},
		{Name: "steps", Spelled: []body.Spelled{asSteps.As("steps")}},
		{Name: "startCmd", Spelled: []body.Spelled{body.AsText.As("startCmd")}},
		{Name: "readyCmd", Spelled: []body.Spelled{body.AsText.As("readyCmd")}},
	}
	tagBody = body.Vocabulary{
		{Name: "target", Required: true, Spelled: []body.Spelled{body.AsText.As("target")}},
		{Name: "tags", Required: true, Spelled: []body.Spelled{body.AsRules.As("tags")}},
	}
	untagBody = body.Vocabulary{
		{Name: "name", Required: true, Spelled: []body.Spelled{body.AsText.As("name")}},
		{Name: "tags", Required: true, Spelled: []body.Spelled{body.AsRules.As("tags")}},
	}
)

// Forms of builds.
var (
	asNoGrowth = body.Form{Words: "0: a sandbox has the disk that its limit says", Schema: body.Schema{"const": 0}, Read: func(path string, raw []byte) (any, error) {
		if string(bytes.TrimSpace(raw)) != "0" {
			return nil, badRequest("%q is not supported: the disk of a sandbox is as large as its limit, diskMiB of create", path)
		}
		return nil, nil
	}}
	asLogin = body.Form{Words: "a login for the registry of an image", Schema: body.Schema{"type": "object"}, Read: readLogin}
	asSteps = body.Form{Words: "an array of steps", Schema: body.Schema{"type": "array", "items": body.Schema{"type": "object"}}, Read: readSteps}
)

// The bodies within the body of a build.
var (
	loginBody = body.Vocabulary{
		{Name: "type", Required: true, Spelled: []body.Spelled{body.AsText.As("type")}},
		{Name: "username", Spelled: []body.Spelled{body.AsText.As("username")}},
		{Name: "password", Hidden: true, Spelled: []body.Spelled{body.AsText.As("password")}},
		{Name: "serviceAccountJson", Hidden: true, Spelled: []body.Spelled{body.AsText.As("serviceAccountJson")}},
		{Name: "aws", Hidden: true, Spelled: []body.Spelled{asNothingOfAWS.As("awsAccessKeyId awsSecretAccessKey awsRegion")}},
	}
	stepBody = body.Vocabulary{
		{Name: "type", Required: true, Spelled: []body.Spelled{body.AsText.As("type")}},
		{Name: "args", Spelled: []body.Spelled{body.AsRules.As("args")}},
		{Name: "force", Spelled: []body.Spelled{body.AsFlag.As("force")}},
		{Name: "filesHash", Spelled: []body.Spelled{body.AsText.As("filesHash")}},
		{Name: "packing", Spelled: []body.Spelled{asOfClients.As("forceUpload resolveSymlinks gzip")}},
	}
)

var (
	// asOfClients is what a client does with files before it sends them. E2B's SDKs
	// send it along.
	asOfClients = body.Form{Words: "a boolean that concerns the client alone", Schema: body.AsFlag.Schema, Read: func(path string, raw []byte) (any, error) {
		_, err := body.AsFlag.Read(path, raw)
		return nil, err
	}}
	asNothingOfAWS = body.Form{Words: "not supported", Read: func(path string, _ []byte) (any, error) {
		return nil, badRequest("%q is of the type aws, which is not supported: give the type registry, with the username AWS and the password that aws ecr get-login-password prints", path)
	}}
)

// readLogin reads a login. No error quotes it.
func readLogin(path string, raw []byte) (any, error) {
	if !isOf(raw, '{') {
		return nil, badRequest("%q must be an object with a type, and what that needs", path)
	}
	words, err := loginBody.Parse(raw, body.NullIsAbsent)
	if err != nil {
		return nil, body.InField(path, err)
	}
	text := func(option string) string { s, _ := said[string](words, option); return s }
	switch kind := text("type"); kind {
	case "registry":
		return image.Login{User: text("username"), Password: text("password")}, takes(path, words, "username", "password")
	case "gcp":
		return image.Login{User: "_json_key", Password: text("serviceAccountJson")}, takes(path, words, "serviceAccountJson")
	case "aws":
		_, err := asNothingOfAWS.Read(path, nil)
		return nil, err
	}
	return nil, badRequest("%q must have the type registry or gcp", path)
}

// takes holds that a login of a type has the fields that it needs, and no others.
func takes(path string, words map[string]body.Said, needs ...string) error {
	kind := words["type"].Value
	for _, field := range needs {
		if value, _ := said[string](words, field); value == "" {
			return badRequest("%q of the type %s needs %q", path, kind, field)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(words)) {
		if field != "type" && !slices.Contains(needs, field) {
			return badRequest("%q of the type %s has no %q", path, kind, field)
		}
	}
	return nil
}

func readSteps(path string, raw []byte) (any, error) {
	var sent []json.RawMessage
	if err := json.Unmarshal(raw, &sent); err != nil {
		return nil, badRequest("%q must be an array of steps", path)
	}
	steps := []build.Step{}
	for i, raw := range sent {
		at := fmt.Sprintf("%s[%d]", path, i)
		if !isOf(raw, '{') {
			return nil, badRequest("%q must be a step, an object", at)
		}
		words, err := stepBody.Parse(raw, body.NullIsAbsent)
		if err != nil {
			return nil, body.InField(at, err)
		}
		var s build.Step
		kind, _ := said[string](words, "type")
		s.Kind = build.Kind(strings.ToUpper(kind))
		s.Args, _ = said[[]string](words, "args")
		s.Files, _ = said[string](words, "filesHash")
		s.Force, _ = said[bool](words, "force")
		steps = append(steps, s)
	}
	return steps, nil
}

// isOf reports whether a JSON value begins with a delimiter.
func isOf(raw []byte, open byte) bool { return bytes.HasPrefix(bytes.TrimSpace(raw), []byte{open}) }

// requestView answers the request for a build.
type requestView struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Public     bool     `json:"public"`
	Names      []string `json:"names"`
	Tags       []string `json:"tags"`
	Aliases    []string `json:"aliases"`
}

// requestBuild makes a template, or a new build of one.
func requestBuild(s *server, c *call) (reply, error) {
	text, _ := said[string](c.words, "name")
	if text == "" {
		return reply{}, badRequest(`"name" is required`)
	}
	tags, _ := said[[]string](c.words, "tags")
	name, tag, tagged := strings.Cut(origin.Ref(text), ":")
	if tagged || strings.HasSuffix(strings.ToLower(text), origin.DefaultTag) {
		tags = append(slices.Clone(tags), orDefault(tag))
	}
	if len(tags) == 0 {
		tags = []string{build.DefaultTag}
	}
	req := build.Request{Name: name, Tags: tags, Key: c.key.ID}
	req.Limits.CPUs, _ = said[float64](c.words, "cpus")
	req.Limits.MemoryMiB, _ = said[int](c.words, "memoryMiB")
	taken, err := s.origins.IsTemplate(req.Name) // of what else has the name, the store knows
	if taken {
		err = fail(http.StatusConflict, "template_exists", "a template that is not built of steps is called %q: choose another name", req.Name)
	}
	if err != nil {
		return reply{}, err
	}
	t, b, err := s.Builds.Request(req)
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusAccepted, Body: requestView{
		TemplateID: t.ID, BuildID: b.ID, Names: []string{t.Name}, Tags: b.Tags, Aliases: []string{t.Name},
	}}, nil
}

func orDefault(tag string) string {
	if tag == "" {
		return build.DefaultTag
	}
	return tag
}

// built returns the template that the path names, if the key sees it.
func built(s *server, c *call) (build.Template, error) {
	t, _, err := s.origins.Built(c.key, c.params["templateID"])
	return t, err
}

// startBuild begins a build.
func startBuild(s *server, c *call) (reply, error) {
	t, err := built(s, c)
	if err != nil {
		return reply{}, err
	}
	r := build.Recipe{Base: build.Base{MayFetch: auth.May(c.key, auth.Manage), Snapshot: func(ref string) (string, error) {
		snap, err := s.origins.Snapshot(c.key, origin.Ref(ref))
		return snap.ID, err
	}}}
	r.Base.Image, _ = said[string](c.words, "fromImage")
	r.Base.Template, _ = said[string](c.words, "fromTemplate")
	if as, given := said[image.Login](c.words, "fromImageRegistry"); given {
		if r.Base.Image == "" {
			return reply{}, badRequest(`"fromImageRegistry" is for an image, and "fromImage" names none`)
		}
		r.Base.Login = &as
	}
	r.Force, _ = said[bool](c.words, "force")
	r.Steps, _ = said[[]build.Step](c.words, "steps")
	r.Start, _ = said[string](c.words, "startCmd")
	r.Ready, _ = said[string](c.words, "readyCmd")
	return reply{Status: http.StatusAccepted}, s.Builds.Start(c.r.Context(), t.ID, c.params["buildID"], r)
}

// lineView is a line of the log of a build.
type lineView struct {
	Timestamp httpapi.Timestamp `json:"timestamp"`
	Message   string            `json:"message"`
	Level     build.Level       `json:"level"`
	Step      string            `json:"step,omitempty"`
}

// progressView is how far a build is.
type progressView struct {
	TemplateID string       `json:"templateID"`
	BuildID    string       `json:"buildID"`
	Status     build.Status `json:"status"`
	Logs       []string     `json:"logs"`
	LogEntries []lineView   `json:"logEntries"`
	Reason     *reasonView  `json:"reason,omitempty"`
}

type reasonView struct {
	Message    string     `json:"message"`
	Step       string     `json:"step,omitempty"`
	LogEntries []lineView `json:"logEntries"`
}

// maxLines is how many lines of a log one answer has.
const maxLines = 100

// buildStatus tells how far a build is, with its log from an offset on.
func buildStatus(s *server, c *call) (reply, error) {
	offset, err := parseCount(c.query, "logsOffset", 0, 0, 1<<30)
	if err != nil {
		return reply{}, err
	}
	limit, err := parseCount(c.query, "limit", maxLines, 1, maxLines)
	if err != nil {
		return reply{}, err
	}
	level, err := parseLevel(c.query)
	if err != nil {
		return reply{}, err
	}
	t, err := built(s, c)
	if err != nil {
		return reply{}, err
	}
	p, err := s.Builds.Progress(t.ID, c.params["buildID"], offset, limit)
	lines := linesOf(p)
	if level != "" { // the offset counts those of the level
		p, err = s.Builds.Progress(t.ID, c.params["buildID"], 0, wholeLog)
		lines = logQuery{level: level, limit: offset + limit}.apply(linesOf(p))
		lines = lines[min(offset, len(lines)):]
	}
	if err != nil {
		return reply{}, err
	}
	v := progressView{TemplateID: t.ID, BuildID: p.Build.ID, Status: p.Build.Status, Logs: []string{}, LogEntries: viewLines(lines)}
	for _, l := range lines {
		v.Logs = append(v.Logs, l.Message)
	}
	if r := p.Build.Reason; r != nil {
		v.Reason = &reasonView{Message: r.Text, Step: r.Step, LogEntries: []lineView{}}
	}
	return reply{Status: http.StatusOK, Body: v}, nil
}

// stepField is the field of a line that names its step.
const stepField = "step"

// wholeLog is more lines than a log has.
const wholeLog = 1 << 30

// linesOf returns the lines of a build as those of every other log.
func linesOf(p build.Progress) (lines []journal.Line) {
	for _, l := range p.Lines {
		lines = append(lines, journal.Line{At: l.At, Level: journal.Level(l.Level), Message: l.Text, Fields: map[string]string{stepField: l.Step}})
	}
	return lines
}

func viewLines(lines []journal.Line) []lineView {
	views := []lineView{}
	for _, l := range lines {
		views = append(views, lineView{httpapi.Timestamp(l.At), l.Message, build.Level(l.Level), l.Fields[stepField]})
	}
	return views
}

// buildLogs gives the lines of the log of a build by their time, the oldest first if
// nothing is said. A client may say where E2B keeps them; here they are in one place.
func buildLogs(s *server, c *call) (reply, error) {
	q, err := parseLogQuery(c.query)
	if err == nil {
		q.limit, err = parseCount(c.query, "limit", maxLines, 1, maxLines)
	}
	if err != nil {
		return reply{}, err
	}
	q.backward = q.backward && c.query.Has("direction")
	if source := c.query.Get("source"); source != "" && source != "temporary" && source != "persistent" {
		return reply{}, badRequest(`"source" must be temporary or persistent`)
	}
	t, err := built(s, c)
	if err != nil {
		return reply{}, err
	}
	p, err := s.Builds.Progress(t.ID, c.params["buildID"], 0, wholeLog)
	return reply{Status: http.StatusOK, Body: map[string]any{"logs": viewLines(q.apply(linesOf(p)))}}, err
}

// uploadView says where the files of a step are to be sent.
type uploadView struct {
	Present bool   `json:"present"`
	URL     string `json:"url,omitempty"`
}

// uploadFor is how long files may be sent to such an address.
const uploadFor = 2 * time.Hour

// buildFiles tells whether the files of a step are here, and where to send them.
func buildFiles(s *server, c *call) (reply, error) {
	t, err := built(s, c)
	if err != nil {
		return reply{}, err
	}
	hash := c.params["hash"]
	has, err := s.Builds.HasFiles(t.ID, hash)
	if err != nil {
		return reply{}, err
	}
	where := url.URL{Scheme: "http", Host: c.r.Host, Path: "/templates/" + t.ID + "/files/" + hash}
	if c.r.TLS != nil || c.r.Header.Get("X-Forwarded-Proto") == "https" {
		where.Scheme = "https"
	}
	u := uploadAddress{key: c.key.ID, template: t.ID, hash: hash, given: strconv.FormatInt(time.Now().UnixMicro(), 10)}
	where.RawQuery = url.Values{"key": {u.key}, "given": {u.given}, "signature": {u.sign(s)}}.Encode()
	return reply{Status: http.StatusCreated, Body: uploadView{Present: has, URL: where.String()}}, nil
}

// uploadAddress is who may send which files of a template, and when that was said.
// E2B's clients name no build where they ask for one: the files are for all builds of
// the template that waited when it was given, and no others.
type uploadAddress struct{ key, template, hash, given string }

func (u uploadAddress) sign(s *server) string {
	return s.Sign("upload", fmt.Sprintf("%q %q %q %q", u.key, u.template, u.hash, u.given))
}

// check returns when the address was given, if it is one of this server that is good
// still.
func (u uploadAddress) check(s *server, signature string) (given time.Time, err error) {
	micros, err := strconv.ParseInt(u.given, 10, 64)
	if err != nil || subtle.ConstantTimeCompare([]byte(u.sign(s)), []byte(signature)) != 1 {
		return given, fail(http.StatusForbidden, "signature_invalid", "this address was not given by this server: ask for one with GET")
	}
	given = time.UnixMicro(micros)
	if time.Since(given) > uploadFor {
		return given, fail(http.StatusForbidden, "signature_expired", "files cannot be sent to this address any more: ask for another one with GET")
	}
	return given, nil
}

// may returns the key that was given the address, if it could ask for it now.
func (u uploadAddress) may(s *server) (store.Key, error) {
	key, err := s.Auth.Current(u.key)
	if err == nil {
		err = auth.Require(key, auth.Use)
	}
	if err == nil {
		_, _, err = s.origins.Built(key, u.template)
	}
	return key, err
}

// putFiles takes the files of a step. Who may send them is in the address.
func putFiles(s *server, c *call) (reply, error) {
	u := uploadAddress{key: c.query.Get("key"), template: c.params["templateID"], hash: c.params["hash"], given: c.query.Get("given")}
	given, err := u.check(s, c.query.Get("signature"))
	if err != nil {
		return reply{}, err
	}
	key, err := u.may(s)
	if err == nil {
		audit.By(c.r.Context(), audit.Actor{ID: key.ID, Name: key.Name, Role: string(key.Role)}, false)
		err = s.Auth.Take(key.ID)
	}
	if err != nil {
		return reply{}, err
	}
	if err := build.CheckArchive(c.r.ContentLength); err != nil {
		return reply{}, err
	}
	err = s.Builds.PutFiles(c.r.Context(), build.Upload{
		Template: u.template, Hash: u.hash, Asked: given, May: func() error { _, err := u.may(s); return err },
		Data: httpapi.Patient(c.w, c.r, httpapi.UploadPause),
	})
	if err == nil {
		return reply{Status: http.StatusOK, Body: map[string]any{}}, nil
	}
	if _, known := errors.AsType[*errdef.Error](err); !known && c.r.Context().Err() == nil {
		c.log.Warn("files of a build did not come whole", "template", u.template, "err", err)
		return reply{}, fail(http.StatusBadRequest, "upload_broken", "the files did not come whole: send them again")
	}
	return reply{}, err
}

// assignTags gives a result more tags.
func assignTags(s *server, c *call) (reply, error) {
	target, _ := said[string](c.words, "target")
	t, from, err := s.origins.Built(c.key, target)
	if err != nil {
		return reply{}, err
	}
	tags, err := tagsOf(c.words, t)
	if err != nil {
		return reply{}, err
	}
	id, err := s.Builds.Tag(c.r.Context(), t.ID, orDefault(from), tags)
	return reply{Status: http.StatusCreated, Body: map[string]any{"tags": tags, "buildID": id}}, err
}

// tagsOf returns the tags of a body, each without the name that may stand before it: the
// template's own.
func tagsOf(words map[string]body.Said, t build.Template) ([]string, error) {
	list, _ := said[[]string](words, "tags")
	if len(list) == 0 {
		return nil, badRequest(`"tags" is empty`)
	}
	tags := []string{}
	for _, text := range list {
		tag := strings.ToLower(strings.TrimSpace(text))
		if name, after, named := strings.Cut(tag, ":"); named {
			if name = strings.TrimPrefix(name, origin.Namespace+"/"); name != t.Name && name != t.ID {
				return nil, badRequest(`"tags" has %q, which is no tag of template %s`, body.Short(text), t.Name)
			}
			tag = after
		}
		tags = append(tags, tag)
	}
	return tags, nil
}

// removeTags takes tags away.
func removeTags(s *server, c *call) (reply, error) {
	name, _ := said[string](c.words, "name")
	t, _, err := s.origins.Built(c.key, name)
	if err != nil {
		return reply{}, err
	}
	tags, err := tagsOf(c.words, t)
	if err != nil {
		return reply{}, err
	}
	return noContent, s.Builds.Untag(c.r.Context(), t.ID, tags)
}

// tagView is a tag of a template.
type tagView struct {
	Tag       string            `json:"tag"`
	BuildID   string            `json:"buildID"`
	CreatedAt httpapi.Timestamp `json:"createdAt"`
}

// listTags lists the tags of a template, newest first.
func listTags(s *server, c *call) (reply, error) {
	t, err := built(s, c)
	if err != nil {
		return reply{}, err
	}
	views := []tagView{}
	for name, tag := range t.Tags {
		views = append(views, tagView{name, tag.Build, httpapi.Timestamp(tag.At)})
	}
	slices.SortFunc(views, func(a, b tagView) int {
		if n := time.Time(b.CreatedAt).Compare(time.Time(a.CreatedAt)); n != 0 {
			return n
		}
		return strings.Compare(a.Tag, b.Tag)
	})
	return reply{Status: http.StatusOK, Body: views}, nil
}

// limitsOf returns the limits of the sandboxes of a build: where it says nothing,
// those of any other. A build never says how large the disk is.
func limitsOf(s *server, b build.Build) store.Limits {
	l := store.Limits{CPUs: b.Limits.CPUs, MemoryMiB: b.Limits.MemoryMiB}
	if host, err := s.Templates.Template(template.Host); err == nil {
		l.CPUs, l.MemoryMiB, l.DiskMiB = cmp.Or(l.CPUs, host.Limits.CPUs), cmp.Or(l.MemoryMiB, host.Limits.MemoryMiB), host.Limits.DiskMiB
	}
	return l
}

// viewOfBuilt shows a template that was built of steps to a key, as an item of a list.
func viewOfBuilt(s *server, key store.Key, t build.Template) templateView {
	names := []string{t.CalledBy(key.ID)}
	last := t.Builds[0]
	limits := limitsOf(s, last)
	return templateView{
		TemplateID: t.ID, BuildID: last.ID, CPUCount: limits.VCPUs(), MemoryMB: limits.MemoryMiB, DiskSizeMB: limits.DiskMiB,
		Aliases: names, Names: names,
		CreatedAt: httpapi.Timestamp(t.CreatedAt), UpdatedAt: httpapi.Timestamp(t.UpdatedAt),
		BuildCount: len(t.Builds), EnvdVersion: s.EnvdVersion, BuildStatus: string(last.Status),
	}
}

// detailOfBuilt shows it with its builds.
func detailOfBuilt(s *server, key store.Key, t build.Template) map[string]any {
	names := []string{t.CalledBy(key.ID)}
	builds := []map[string]any{}
	for _, b := range t.Builds {
		limits := limitsOf(s, b)
		v := map[string]any{
			"buildID": b.ID, "status": b.Status, "createdAt": httpapi.Timestamp(b.CreatedAt), "updatedAt": httpapi.Timestamp(later(b.CreatedAt, b.FinishedAt)),
			"cpuCount": limits.VCPUs(), "memoryMB": limits.MemoryMiB, "diskSizeMB": limits.DiskMiB, "envdVersion": s.EnvdVersion,
		}
		if b.Status.Over() {
			v["finishedAt"] = httpapi.Timestamp(b.FinishedAt)
		}
		builds = append(builds, v)
	}
	return map[string]any{
		"templateID": t.ID, "public": false, "aliases": names, "names": names,
		"createdAt": httpapi.Timestamp(t.CreatedAt), "updatedAt": httpapi.Timestamp(t.UpdatedAt), "lastSpawnedAt": nil, "spawnCount": 0, "builds": builds,
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
