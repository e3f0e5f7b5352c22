package v1

import "github.com/drowse-dev/drowse/internal/api/body"

// The bodies of the verbs.
var (
	sandboxOption = body.Option{
		Name: "sandbox", Doc: "The sandbox's id.", Required: true,
		Spelled: []body.Spelled{body.AsText.As("sandbox sandboxID sandboxId sandbox_id")},
	}
	deadlineOption = body.Option{
		Name: "timeoutSeconds", Doc: "How long it runs from now.", Required: true,
		Spelled: []body.Spelled{body.UntilSeconds.As("timeoutSeconds timeout_seconds timeout"), body.UntilMillis.As("timeoutMs timeout_ms")},
	}
	pauseBody   = body.Vocabulary{body.PauseMode}
	resumeBody  = body.Options
	timeoutBody = body.Vocabulary{deadlineOption}
	holdBody    = body.Vocabulary{
		{Name: "reason", Doc: "What it is busy with.", Required: true, Spelled: []body.Spelled{body.AsText.As("reason")}},
		{Name: "seconds", Doc: "How long it counts as busy at most, from now.", Required: true, Spelled: []body.Spelled{body.InSomeSeconds.As("seconds")}},
		{Name: "id", Doc: "Names the hold; to use the id of one that exists prolongs that. Made if not said.", Spelled: []body.Spelled{body.AsText.As("id")}},
	}
	previewBody = body.Vocabulary{
		{Name: "port", Doc: "The port of a server in the sandbox.", Required: true, Spelled: []body.Spelled{body.AsPort.As("port")}},
		{Name: "expiresInSeconds", Doc: "How long the link is good, 30 days at most; one hour if not said. Its end is rounded up to a whole second.",
			Spelled: []body.Spelled{body.InSomeSeconds.As("expiresInSeconds expiresIn expires_in expires_in_seconds ttl")}},
		{Name: "path", Doc: "Where the link leads at the port, with a query if need be; / if not said. It bounds nothing: the link is good for the whole port.",
			Spelled: []body.Spelled{body.AsPath.As("path")}},
	}
	keyBody = body.Vocabulary{
		{Name: "name", Doc: "What or whom the key is for.", Required: true, Spelled: []body.Spelled{body.AsText.As("name")}},
		{Name: "role", Doc: "What it may do; full if not said.", Spelled: []body.Spelled{body.AsRole.As("role")}},
		{Name: "expiresInSeconds", Doc: "How long it is good; for ever if not said.",
			Spelled: []body.Spelled{body.InSomeSeconds.As("expiresInSeconds expiresIn expires_in expires_in_seconds ttl")}},
		{Name: "maxRunning", Doc: "How many sandboxes that it has made may run at once; no bound if not said. A wake counts, whoever asks for it.",
			Spelled: []body.Spelled{body.AsCount.As("maxRunning max_running limits.maxRunning limits.max_running")}},
		{Name: "maxSandboxes", Doc: "How many sandboxes that it has made there may be, those that sleep included; no bound if not said.",
			Spelled: []body.Spelled{body.AsCount.As("maxSandboxes max_sandboxes limits.maxSandboxes limits.max_sandboxes")}},
		{Name: "maxMemoryMiB", Doc: "How much memory the sandboxes that it has made and that run may have together, by their limits; no bound if not said.",
			Spelled: []body.Spelled{body.AsCount.As("maxMemoryMiB max_memory_mib limits.maxMemoryMiB limits.max_memory_mib")}},
		{Name: "maxDiskMiB", Doc: "How much of the disk the sandboxes that it has made may have together, asleep or not, by their limits; no bound if not said. A sandbox without a limit is refused then.",
			Spelled: []body.Spelled{body.AsCount.As("maxDiskMiB max_disk_mib limits.maxDiskMiB limits.max_disk_mib")}},
	}
	volumeBody = body.Vocabulary{
		{Name: "name", Doc: "What it is called: letters, digits, - and _, 128 at most. No other volume may have the name.", Required: true, Spelled: []body.Spelled{body.AsText.As("name")}},
		{Name: "diskMiB", Doc: "How much it may hold, and one file for each 16 KiB of it; the server's --volume-disk if not said. Past it, all running sandboxes that have it are paused, and writes of its files are refused with volume_full.",
			Spelled: []body.Spelled{body.AsCount.As("diskMiB disk_mib")}},
	}
	templateBody = body.Vocabulary{
		{Name: "image", Doc: "A reference to an image in a registry, such as python:3.12 or ghcr.io/owner/name@sha256:...", Required: true, Spelled: []body.Spelled{body.AsText.As("image")}},
		{Name: "name", Doc: "What the template is to be called; the last part of the repository with its tag if not said. It takes the name from the template that has it.", Spelled: []body.Spelled{body.AsText.As("name")}},
	}
	templateNameBody = body.Vocabulary{
		{Name: "template", Doc: "The name or id of a template, or host for the host's own system.", Required: true, Spelled: []body.Spelled{body.AsText.As("template templateID templateId template_id")}},
	}
	flatPauseBody      = body.Vocabulary{sandboxOption, body.PauseMode}
	flatResumeBody     = append(body.Vocabulary{sandboxOption}, body.Options...)
	flatSetTimeoutBody = body.Vocabulary{sandboxOption, deadlineOption}
)
