package v1

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/store"
)

// Secrets are what sandboxes use without having it, as [secret.Vault] has them. No
// method returns a value.
type Secrets interface {
	// Set makes a secret of an API key, or replaces the one of its name; without a
	// value it keeps the one that it has.
	Set(ctx context.Context, key, name string, rule store.SecretRule, value *string) (store.Secret, error)
	Rotate(ctx context.Context, key, name, value string) (store.Secret, error)
	// Of returns those of an API key, oldest first.
	Of(key string) []store.Secret
	Get(key, name string) (store.Secret, error)
	Remove(ctx context.Context, key, name string) error
	// Missing returns the names of secrets that a sandbox has the use of and that
	// are not there.
	Missing(c store.Config) []string
}

var (
	valueOption = body.Option{
		Name: "value", Doc: "The value: one line, at most 64 KiB. It is stored encrypted, and no answer has it. A secret that exists keeps its value if this is left out.",
		Hidden: true, Spelled: []body.Spelled{body.AsText.As("value")},
	}
	secretBody = body.Vocabulary{
		valueOption,
		{Name: "hosts", Doc: "The hosts that the value is for: api.example.com, or *.example.com for all below it, either with a port (default: 443). At most 32.", Required: true, Spelled: []body.Spelled{body.AsRules.As("hosts")}},
		{Name: "headers", Doc: `Headers that every request to the hosts gets, with {} for the value: {"Authorization": "Bearer {}"}. They replace those of the program. At most 16.`, Spelled: []body.Spelled{body.AsTexts.As("headers")}},
		{Name: "query", Doc: `Parameters of the query string, likewise: {"key": "{}"}.`, Spelled: []body.Spelled{body.AsTexts.As("query")}},
		{Name: "env", Doc: "The environment variable that has the placeholder in the sandbox (default: the name in capitals, with _ for -). Where a program sends the placeholder to one of the hosts in a header or in the URL, the value takes its place.", Spelled: []body.Spelled{body.AsText.As("env")}},
		{Name: "plain", Doc: "Whether the value may go out over HTTP without TLS (default: false, and such requests to the hosts are refused).", Spelled: []body.Spelled{body.AsFlag.As("plain")}},
	}
	rotateBody = body.Vocabulary{requiredValue()}
)

func requiredValue() body.Option {
	o := valueOption
	o.Required, o.Doc = true, "The new value: one line, at most 64 KiB."
	return o
}

// secretView is a secret without its value.
type secretView struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Version   int64             `json:"version" doc:"Of the value: 1, and one more with each new value."`
	Env       string            `json:"env" doc:"The environment variable with the placeholder."`
	Hosts     []string          `json:"hosts"`
	Headers   map[string]string `json:"headers" doc:"Headers that every request to the hosts gets; {} stands for the value."`
	Query     map[string]string `json:"query" doc:"Parameters, likewise."`
	Plain     bool              `json:"plain" doc:"Whether the value may go out over HTTP without TLS."`
	CreatedAt httpapi.Timestamp `json:"createdAt"`
	UpdatedAt httpapi.Timestamp `json:"updatedAt" doc:"When the value or a rule was changed last."`
}

type secretsView struct {
	Secrets []secretView `json:"secrets"`
}

// usedSecretView is a secret that a sandbox was given the use of.
type usedSecretView struct {
	Name     string `json:"name"`
	Env      string `json:"env" doc:"The environment variable with the placeholder."`
	Missing  bool   `json:"missing" doc:"Whether the API key of the sandbox has no such secret now, so that requests go out with the placeholder."`
	Withheld bool   `json:"withheld" doc:"Whether the sandbox may not use it, and requests go out with the placeholder: it was forked or started from a sandbox of another API key, or imported without secrets=true."`
}

func viewSecret(x store.Secret) secretView {
	return secretView{
		ID: x.ID, Name: x.Name, Version: x.Version, Env: x.Rule.Env, Hosts: orEmpty(x.Rule.Hosts),
		Headers: viewInserts(x.Rule.Headers), Query: viewInserts(x.Rule.Query), Plain: x.Rule.Plain,
		CreatedAt: httpapi.Timestamp(x.CreatedAt), UpdatedAt: httpapi.Timestamp(x.UpdatedAt),
	}
}

func viewInserts(list []store.Insert) map[string]string {
	m := map[string]string{}
	for _, i := range list {
		m[i.Name] = i.Text
	}
	return m
}

// viewUsedSecrets tells which secrets a sandbox has the use of.
func viewUsedSecrets(all Secrets, c store.Config) []usedSecretView {
	views := []usedSecretView{}
	if len(c.Secrets) == 0 {
		return views
	}
	missing := map[string]bool{}
	for _, name := range all.Missing(c) {
		missing[name] = true
	}
	for _, u := range c.Secrets {
		views = append(views, usedSecretView{Name: u.Name, Env: u.Env, Missing: missing[u.Name], Withheld: u.Withheld})
	}
	return views
}

func setSecret(s *server, c *call) (reply, error) {
	var value *string
	if w, given := c.words["value"]; given {
		text := w.Value.(string)
		value = &text
	}
	x, err := s.Secrets.Set(c.r.Context(), c.key.ID, c.params[secretParam], secretRule(c.words), value)
	if err != nil {
		return reply{}, err
	}
	s.Log.Info("secret set", "secret", x.Name, "id", x.ID, "version", x.Version, "hosts", x.Rule.Hosts, "actor", c.actor)
	return ok(viewSecret(x))
}

func secretRule(words map[string]body.Said) store.SecretRule {
	r := store.SecretRule{Hosts: words["hosts"].Value.([]string)}
	r.Env, _ = words["env"].Value.(string)
	r.Plain, _ = words["plain"].Value.(bool)
	for name, list := range map[string]*[]store.Insert{"headers": &r.Headers, "query": &r.Query} {
		texts, _ := words[name].Value.(map[string]string)
		for _, key := range slices.Sorted(maps.Keys(texts)) {
			*list = append(*list, store.Insert{Name: key, Text: texts[key]})
		}
	}
	return r
}

func rotateSecret(s *server, c *call) (reply, error) {
	x, err := s.Secrets.Rotate(c.r.Context(), c.key.ID, c.params[secretParam], c.words["value"].Value.(string))
	if err != nil {
		return reply{}, err
	}
	s.Log.Info("secret rotated", "secret", x.Name, "id", x.ID, "version", x.Version, "actor", c.actor)
	return ok(viewSecret(x))
}

func listSecrets(s *server, c *call) (reply, error) {
	v := secretsView{Secrets: []secretView{}}
	for _, x := range s.Secrets.Of(c.key.ID) {
		v.Secrets = append(v.Secrets, viewSecret(x))
	}
	return ok(v)
}

func getSecret(s *server, c *call) (reply, error) {
	x, err := s.Secrets.Get(c.key.ID, c.params[secretParam])
	if err != nil {
		return reply{}, err
	}
	return ok(viewSecret(x))
}

func removeSecret(s *server, c *call) (reply, error) {
	name := c.params[secretParam]
	if err := s.Secrets.Remove(c.r.Context(), c.key.ID, name); err != nil {
		return reply{}, err
	}
	s.Log.Info("secret removed", "secret", name, "actor", c.actor)
	return reply{Status: http.StatusNoContent}, nil
}
