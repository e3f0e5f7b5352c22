package sandbox0

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// word is an option that a handler picks out by its name, which is its spelling.
func word(name string, f body.Form) body.Option {
	return body.Option{Name: name, Spelled: []body.Spelled{f.As(name)}}
}

// need is word for one that the body must have.
func need(name string, f body.Form) body.Option {
	o := word(name, f)
	o.Required = true
	return o
}

// refused is a field that this server cannot honour.
func refused(name, why string) body.Option { return body.Refuse(name, why, name) }

// fixed is a field that counts at a claim only.
func fixed(name string) body.Option {
	o := refused(name, "fixed when a sandbox is claimed")
	for i := range o.Spelled {
		nothing := o.Spelled[i].Form.Read
		o.Spelled[i].Form.Read = func(path string, raw []byte) (any, error) {
			if v, err := nothing(path, raw); err == nil {
				return v, nil
			}
			return nil, body.NotChangeable(o, path)
		}
	}
	return o
}

// within puts options into an object.
func within(object string, v body.Vocabulary) body.Vocabulary {
	var inner body.Vocabulary
	for _, o := range v {
		spelled := make([]body.Spelled, len(o.Spelled))
		for i, s := range o.Spelled {
			spelled[i] = s.Form.As(object + "." + s.As)
		}
		o.Name, o.Spelled = object+"."+o.Name, spelled
		inner = append(inner, o)
	}
	return inner
}

func join(parts ...body.Vocabulary) body.Vocabulary {
	var v body.Vocabulary
	for _, p := range parts {
		v = append(v, p...)
	}
	return v
}

// The bodies.
var (
	networkBody = body.Vocabulary{
		need("mode", asNetworkMode),
		word("egress.allowedCidrs", body.AsRules),
		word("egress.allowedDomains", body.AsRules),
		word("egress.deniedCidrs", body.AsRules),
		refused("egress.deniedDomains", "this server denies addresses and networks; names can only be allowed"),
		refused("egress.allowedPorts", "this server has no rules for ports"),
		refused("egress.deniedPorts", "this server has no rules for ports"),
		refused("egress.trafficRules", "this server has no rules for traffic"),
		refused("egress.protocolRules", "this server has no rules for protocols"),
		refused("egress.credentialRules", "this server does not change what sandboxes send"),
		refused("egress.proxy", "a proxy is given by the native API or E2B's: egressProxy"),
		refused("credentialBindings", "this server does not change what sandboxes send"),
	}

	// settings are what a config can say that there is and that is to be.
	settings = body.Vocabulary{
		word("ttl", body.InSeconds),
		word("hard_ttl", body.InSeconds),
		word("auto_resume", body.AsFlag),
		word("services", asServices),
	}
	created = body.Vocabulary{
		word("env_vars", body.AsVars),
		word("resources.memory", asMemory),
		refused("webhook", "webhooks are for all sandboxes here: an operator adds them (drowse webhooks)"),
	}
	claimBody = join(
		body.Vocabulary{
			word("template", body.AsTemplate),
			word("snapshot_id", body.AsText),
			word("mounts", asMounts),
		},
		within("config", join(settings, created, within("network", optional(networkBody)))),
	)
	updateBody = within("config", join(settings, body.Vocabulary{fixed("env_vars"), fixed("resources")}, within("network", optional(networkBody))))

	servicesBody = body.Vocabulary{need("services", asServices)}

	memoryBody  = body.Vocabulary{word("memory", body.AsFlag)}
	refreshBody = body.Vocabulary{word("duration", body.InSeconds)}

	contextBody = body.Vocabulary{
		word("type", asContextType),
		word("repl.alias", body.AsText),
		word("repl.input", body.AsText),
		refused("repl.repl_config", "the languages of REPLs are those that the template has"),
		word("cmd.command", body.AsRules),
		word("wait_until_done", body.AsFlag),
		word("cwd", body.AsText),
		word("env_vars", body.AsVars),
		word("pty_size.rows", asTerminalSize),
		word("pty_size.cols", asTerminalSize),
		word("ttl_sec", body.InSeconds),
		word("idle_timeout_sec", asNoLimit("a context ends when its process does, by its ttl_sec, or when it is deleted")),
	}
	inputBody    = body.Vocabulary{need("data", body.AsText)}
	resizeBody   = body.Vocabulary{need("rows", asTerminalSize), need("cols", asTerminalSize)}
	signalBody   = body.Vocabulary{need("signal", asSignal)}
	restoreBody  = body.Vocabulary{need("snapshot_id", body.AsText)}
	snapshotBody = body.Vocabulary{
		word("name", body.AsText),
		word("expires_at", asTime),
		refused("description", "a snapshot has a name and no description"),
	}
	forkBody   = body.Vocabulary{word("memory", body.AsFlag), word("config.ttl", body.InSeconds), word("config.hard_ttl", body.InSeconds)}
	volumeBody = body.Vocabulary{
		word("backend", oneOf(volumeBackend)),
		word("access_mode", oneOf(volumeAccess)),
		refused("snapshot_id", "volumes have no snapshots here"),
		refused("s3", "volumes are on this server's disk"),
		word("default_posix_uid", asRoot),
		word("default_posix_gid", asRoot),
	}
	moveBody = body.Vocabulary{need("source", body.AsText), need("destination", body.AsText)}
)

// optional returns a vocabulary without what is required: the object around it
// may be missing. Its handler asks for it.
func optional(v body.Vocabulary) body.Vocabulary {
	var free body.Vocabulary
	for _, o := range v {
		o.Required = false
		free = append(free, o)
	}
	return free
}

// form is a form of this dialect's own.
func form(described string, read func(path string, raw []byte) (any, error)) body.Form {
	return body.Form{Words: described, Read: read}
}

func invalid(path, format string, args ...any) error {
	return body.Invalid("%q %s", path, fmt.Sprintf(format, args...)).With("field", path)
}

// oneOf is one of a few texts.
func oneOf(values ...string) body.Form {
	list := strings.Join(values, " or ")
	return form(list, func(path string, raw []byte) (any, error) {
		text, err := body.AsText.Read(path, raw)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if text == v {
				return v, nil
			}
		}
		return nil, invalid(path, "must be %s, not %s", list, body.Brief(raw))
	})
}

const (
	allowAll = "allow-all"
	blockAll = "block-all"
	repl     = "repl"
	cmd      = "cmd"
)

var (
	asNetworkMode = oneOf(allowAll, blockAll)
	asContextType = oneOf(repl, cmd)
)

var memoryForm = lazyregexp.New(`^([0-9]{1,9})(Mi|Gi|M|G)$`)

// asMemory reads a quantity as sandbox0 writes it, in MiB.
var asMemory = form(`a quantity such as "512Mi" or "2Gi"`, func(path string, raw []byte) (any, error) {
	text, err := body.AsText.Read(path, raw)
	if err != nil || text == "" {
		return nil, err
	}
	m := memoryForm.FindStringSubmatch(text.(string))
	if m == nil {
		return nil, invalid(path, `is %s: write it as "512Mi" or "2Gi"`, body.Brief(raw))
	}
	n, _ := strconv.ParseFloat(m[1], 64)
	units := map[string]float64{"Mi": 1, "Gi": 1 << 10, "M": 1e6 / (1 << 20), "G": 1e9 / (1 << 20)}
	mib := math.Ceil(n * units[m[2]])
	if mib < 1 || mib > math.MaxInt32 {
		return nil, invalid(path, "is %s, which no sandbox can have", body.Brief(raw))
	}
	return int(mib), nil
})

// mount is a volume and where it is to be.
type mount struct{ volume, path string }

// mountBody is what an item of mounts can say.
var mountBody = body.Vocabulary{need("sandboxvolume_id", body.AsText), need("mount_point", body.AsText)}

var asMounts = form("an array of volumes", func(path string, raw []byte) (any, error) {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return nil, invalid(path, "must be an array of volumes")
	}
	var list []mount
	for _, item := range items {
		w, err := mountBody.Parse(item, body.NullIsAbsent)
		if err != nil {
			return nil, err
		}
		list = append(list, mount{w["sandboxvolume_id"].Value.(string), w["mount_point"].Value.(string)})
	}
	return list, nil
})

// maxTerminal is the largest side of a terminal that the kernel keeps.
const maxTerminal = math.MaxUint16

var asTerminalSize = form("an integer from 1 to 65535", func(path string, raw []byte) (any, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 32)
	if err != nil || n < 1 || n > maxTerminal {
		return nil, invalid(path, "must be an integer from 1 to %d, not %s", maxTerminal, body.Brief(raw))
	}
	return uint32(n), nil
})

// asSignal is the name of a signal, with or without SIG, or its number.
var asSignal = form("the name or number of a signal", func(path string, raw []byte) (any, error) {
	text := strings.TrimSpace(string(raw))
	if !strings.HasPrefix(text, `"`) {
		return text, nil
	}
	return body.AsText.Read(path, raw)
})

// asRoot is an owner that can only be root, who is meant where nobody says.
var asRoot = form("0", func(path string, raw []byte) (any, error) {
	if strings.TrimSpace(string(raw)) != "0" {
		return nil, invalid(path, "must be 0, not %s: files that are put into a volume from outside belong to root", body.Brief(raw))
	}
	return nil, nil
})

// asTime is a moment, as RFC 3339 writes it.
var asTime = form("a time such as 2026-01-31T12:00:00Z", func(path string, raw []byte) (any, error) {
	text, err := body.AsText.Read(path, raw)
	if err != nil {
		return nil, err
	}
	at, err := time.Parse(time.RFC3339Nano, text.(string))
	if err != nil {
		return nil, invalid(path, "is %s, which is no time as RFC 3339 writes it", body.Brief(raw))
	}
	if !at.After(time.Unix(0, 0)) { // what clients write for none
		return nil, nil
	}
	return at.UTC().Truncate(time.Microsecond), nil
})

// asNoLimit is a duration that can only be 0.
func asNoLimit(why string) body.Form {
	return form("0", func(path string, raw []byte) (any, error) {
		d, err := body.InSeconds.Read(path, raw)
		if err != nil || d == time.Duration(0) {
			return nil, err
		}
		return nil, invalid(path, "is not supported by this server: %s", why)
	})
}

// isAddress reports whether a rule is an address or network, and not a name.
func isAddress(rule string) bool {
	if _, err := netip.ParseAddr(rule); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(rule)
	return err == nil
}
