package apitest

import (
	"fmt"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Sample is a value of an option as JSON, and what a create is with it.
type Sample struct {
	Value string
	Set   func(*supervisor.CreateRequest)
}

// Samples is, for every option and every form of it, a value and what it sets.
// Tests go through every spelling of the table with them.
var Samples = map[string]map[string]Sample{
	"template":               {body.AsTemplate.Words: {`"Base:default"`, func(r *supervisor.CreateRequest) { r.Template = "base" }}},
	"name":                   {body.AsName.Words: {`"web-1"`, func(r *supervisor.CreateRequest) { r.Config.Name = "web-1" }}},
	"snapshot":               {body.AsText.Words: {`"kept"`, func(r *supervisor.CreateRequest) { r.Snapshot = "kept" }}},
	"timeoutSeconds":         {body.InSeconds.Words: {"90.5", timeout(90500 * time.Millisecond)}, body.InMillis.Words: {"1500", timeout(1500 * time.Millisecond)}},
	"onTimeout":              {body.AsAction.Words: {`"pause"`, pausing}, body.AsPausing.Words: {"true", pausing}},
	"autoResume":             {body.AsFlag.Words: {"true", func(r *supervisor.CreateRequest) { r.Settings.AutoResume = true }}},
	"pauseMode":              {body.AsMode.Words: {`"filesystem"`, filesystem}, body.AsKeeping.Words: {"false", filesystem}},
	"checkpointEverySeconds": {body.InSeconds.Words: {"600", func(r *supervisor.CreateRequest) { r.Settings.CheckpointEvery = 10 * time.Minute }}},
	"idleTimeoutSeconds":     {body.InSeconds.Words: {"60", func(r *supervisor.CreateRequest) { r.Settings.IdleTimeout = time.Minute }}},
	"onIdle":                 {body.AsAction.Words: {`"pause"`, func(r *supervisor.CreateRequest) { r.Settings.OnIdle = lifecycle.Pause }}},
	"maxLifetimeSeconds":     {body.InSeconds.Words: {"3600", func(r *supervisor.CreateRequest) { r.Settings.MaxLifetime = time.Hour }}},
	"pausedRetentionSeconds": {body.InSeconds.Words: {"7200", func(r *supervisor.CreateRequest) { r.Settings.PausedRetention = 2 * time.Hour }}},
	"refreshOnActivity":      {body.AsRefresh.Words: {`"requests"`, func(r *supervisor.CreateRequest) { r.Settings.RefreshOnActivity = lifecycle.RefreshOnRequests }}},
	"filesystemFallback":     {body.AsFlag.Words: {"true", func(r *supervisor.CreateRequest) { r.Settings.FilesystemFallback = true }}},
	"stallAfterSeconds":      {body.InSecondsOrNever.Words: {"0", func(r *supervisor.CreateRequest) { r.Settings.StallAfter = -1 }}},
	"metadata":               {body.AsTexts.Words: {`{"a":"b"}`, func(r *supervisor.CreateRequest) { r.Config.Metadata = map[string]string{"a": "b"} }}},
	"env":                    {body.AsVars.Words: {`{"A":"b"}`, func(r *supervisor.CreateRequest) { r.Config.Env = map[string]string{"A": "b"} }}},
	"secrets":                {body.AsSecrets.Words: {`["github"]`, func(r *supervisor.CreateRequest) { r.Config.Secrets = []store.SecretUse{{Name: "github"}} }}},
	"allowInternetAccess":    {body.AsFlag.Words: {"false", func(r *supervisor.CreateRequest) { r.Config.AllowInternet = new(false) }}},
	"cpus":                   {body.AsCPUs.Words: {"2.5", func(r *supervisor.CreateRequest) { r.Config.Limits.CPUs = 2.5 }}},
	"memoryMiB":              {body.AsCount.Words: {"2048", func(r *supervisor.CreateRequest) { r.Config.Limits.MemoryMiB = 2048 }}},
	"diskMiB":                {body.AsCount.Words: {"300", func(r *supervisor.CreateRequest) { r.Config.Limits.DiskMiB = 300 }}},
	"pids":                   {body.AsCount.Words: {"300", func(r *supervisor.CreateRequest) { r.Config.Limits.PIDs = 300 }}},
	"allowOut":               {body.AsRules.Words: {`["203.0.113.1"]`, func(r *supervisor.CreateRequest) { r.Config.AllowOut = []string{"203.0.113.1"} }}},
	"denyOut":                {body.AsRules.Words: {`["0.0.0.0/0"]`, func(r *supervisor.CreateRequest) { r.Config.DenyOut = []string{"0.0.0.0/0"} }}},
	"egressProxy": {body.AsProxy.Words: {`{"address":"proxy.example.com:1080","username":"u","password":"p"}`, func(r *supervisor.CreateRequest) {
		r.Config.Proxy = &store.Proxy{Address: "proxy.example.com:1080", Username: "u", Password: "p"}
	}}},
	"secure":             {body.AsFlag.Words: {"false", func(r *supervisor.CreateRequest) { r.Config.Secure = false }}},
	"allowPublicTraffic": {body.AsFlag.Words: {"false", func(r *supervisor.CreateRequest) { r.Config.PrivatePorts = true }}},
	"maskRequestHost":    {body.AsHostMask.Words: {`"localhost:${PORT}"`, func(r *supervisor.CreateRequest) { r.Config.HostMask = "localhost:${PORT}" }}},
	"httpsPorts":         {body.AsPortList.Words: {"[8443]", func(r *supervisor.CreateRequest) { r.Config.HTTPSPorts = []int{8443} }}},
	"ports": {body.AsPorts.Words: {`{"8000":"keep","8000/healthz/":"ignore"}`, func(r *supervisor.CreateRequest) {
		r.Config.Ports = store.Ports{"8000": lifecycle.Keep, "8000/healthz": lifecycle.Ignore}
	}}},
	"volumes": {body.AsVolumes.Words: {`{"/mnt/b":"x","/mnt/a":"x"}`, func(r *supervisor.CreateRequest) {
		r.Config.Volumes = []store.VolumeMount{{Name: "x", Path: "/mnt/a"}, {Name: "x", Path: "/mnt/b"}}
	}}, body.AsMounts.Words: {`[{"name":"x","path":"/mnt/a"}]`, func(r *supervisor.CreateRequest) {
		r.Config.Volumes = []store.VolumeMount{{Name: "x", Path: "/mnt/a"}}
	}}},
	"services": {body.AsServices.Words: {`[{"name":"web","command":"serve"}]`, func(r *supervisor.CreateRequest) {
		r.Config.Services = []service.Service{service.Service{Name: "web", Shell: "serve"}.WithDefaults()}
	}}},
	"hooks": {body.AsHooks.Words: {`{"prePause":{"command":"sync"}}`, func(r *supervisor.CreateRequest) {
		r.Config.Hooks.PrePause = store.Hook{Command: "sync", Budget: 5 * time.Second}
	}}},
}

func timeout(d time.Duration) func(*supervisor.CreateRequest) {
	return func(r *supervisor.CreateRequest) { r.Settings.Timeout = d }
}

func pausing(r *supervisor.CreateRequest) { r.Settings.OnTimeout = lifecycle.Pause }

func filesystem(r *supervisor.CreateRequest) { r.Settings.PauseMode = lifecycle.Filesystem }

// Nested writes a value at a path. An object that is itself an option gets the
// field that it cannot be without.
func Nested(path, value string) string {
	names := strings.Split(path, ".")
	for i, name := range names {
		names[i] = fmt.Sprintf("%q:", name)
	}
	text := names[len(names)-1] + value
	if path == "ttl" {
		text += `,"hard_ttl":3600`
	}
	if last := strings.ToLower(path); strings.Contains(last, "timeout.keep") || strings.Contains(last, "timeout.keep_") {
		text += `,"action":"kill"`
	}
	for i := len(names) - 2; i >= 0; i-- {
		text = names[i] + "{" + text + "}"
	}
	return text
}
