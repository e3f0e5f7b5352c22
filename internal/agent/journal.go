package agent

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/human"
)

// journal is what happened through the API, for the sandbox's log. It keeps the
// last lines; the host fetches and stores them.
type journal struct {
	settings *settings // what is a secret

	mu    sync.Mutex
	seq   int64
	lines []agentapi.LogLine // oldest first
}

func (j *journal) add(level, message string, fields map[string]string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	if len(j.lines) == agentapi.MaxLogLines {
		j.lines = slices.Delete(j.lines, 0, 1)
	}
	j.lines = append(j.lines, agentapi.LogLine{
		Seq: j.seq, At: time.Now().UTC(), Level: level, Message: human.Line(message, agentapi.MaxLogMessage), Fields: fields,
	})
}

// after returns the lines that follow the one with a number.
func (j *journal) after(seq int64) []agentapi.LogLine {
	j.mu.Lock()
	defer j.mu.Unlock()
	first, _ := slices.BinarySearchFunc(j.lines, seq+1, func(l agentapi.LogLine, seq int64) int { return cmp.Compare(l.Seq, seq) })
	return slices.Clone(j.lines[first:])
}

func (a *Agent) handleLog(w http.ResponseWriter, r *http.Request) {
	// What is no number is none.
	after, _ := strconv.ParseInt(r.URL.Query().Get(agentapi.ParamAfter), 10, 64)
	writeJSON(w, http.StatusOK, agentapi.Log{Lines: a.journal.after(after)})
}

func (j *journal) started(p *process, user *account) {
	j.add("info", "process started: "+j.commandLine(p.config), map[string]string{"pid": strconv.Itoa(int(p.pid)), "user": user.name})
}

func (j *journal) ended(p *process) {
	level := "info"
	end := p.endEvent().GetEnd()
	if end.GetExitCode() != 0 {
		level = "warn"
	}
	j.add(level, "process ended: "+end.GetStatus(), map[string]string{
		"pid": strconv.Itoa(int(p.pid)), "exitCode": strconv.Itoa(int(end.GetExitCode())),
	})
}

func (j *journal) failed(config *processpb.ProcessConfig, err error) {
	j.add("error", "process could not be started: "+j.commandLine(config)+": "+j.withoutSecrets(config, err.Error()), nil)
}

// commandLine returns a command as it may be kept and shown.
func (j *journal) commandLine(config *processpb.ProcessConfig) string {
	line := strings.Join(append([]string{config.GetCmd()}, config.GetArgs()...), " ")
	return human.Line(j.withoutSecrets(config, line), agentapi.MaxLogMessage/2)
}

// leastSecret is how long a variable's value must be to be looked for: a shorter
// one is part of other words.
const leastSecret = 6

// namedSecrets find values that their names call secret, as in NAME_TOKEN=value,
// "apiKey": "value", Authorization: Bearer value and --password value.
var namedSecrets = []*regexp.Regexp{
	regexp.MustCompile(`(?i)(` + secretName + `["']?\s*[=:]\s*["']?(?:bearer\s+|basic\s+)?)[^\s"']+`),
	regexp.MustCompile(`(?i)(\s--?[\w-]*` + secretName + `\s+["']?)[^\s"']+`),
}

const secretName = `(?:token|secret|passw(?:or)?d|api[-_]?key|authorization|credential)[\w-]*`

// withoutSecrets removes what must be in no log: the values of environment
// variables, the sandbox's token, and what is named a secret.
func (j *journal) withoutSecrets(config *processpb.ProcessConfig, text string) string {
	values := []string{j.settings.accessToken()}
	for _, value := range j.settings.vars() {
		values = append(values, value)
	}
	for _, value := range config.GetEnvs() {
		values = append(values, value)
	}
	// The longest first: one may be part of another.
	slices.SortFunc(values, func(x, y string) int { return cmp.Compare(len(y), len(x)) })
	for _, value := range values {
		if len(value) >= leastSecret {
			text = strings.ReplaceAll(text, value, "***")
		}
	}
	for _, named := range namedSecrets {
		text = named.ReplaceAllString(text, "$1***")
	}
	return text
}
