package v1

import "github.com/drowse-dev/drowse/internal/api/body"

// The bodies of the verbs.
var (
	sandboxOption = body.Option{
		Name: "sandbox", Doc: "The sandbox's id.", Required: true,
		Spelled: []body.Spelled{body.AsText.As("sandbox sandboxID sandboxId sandbox_id")},
	}
	deadlineOption = body.Option{
		Name: "timeoutSeconds", Doc: "How long the sandbox runs from now.", Required: true,
		Spelled: []body.Spelled{body.UntilSeconds.As("timeoutSeconds timeout_seconds timeout"), body.UntilMillis.As("timeoutMs timeout_ms")},
	}
	snapshotOption = body.Option{
		Name: "snapshot", Doc: "The snapshot that the sandbox starts from, by its id or the name that the API key has given it, instead of a template. The sandbox has the template, the processors, the memory limit and the volumes of the snapshot, and its environment variables where env does not replace them.",
		Spelled: []body.Spelled{body.AsText.As("snapshot snapshotID snapshotId snapshot_id")},
	}
	pinnedOption = body.Option{
		Name: "pinned", Doc: "Whether the snapshot is kept whatever expires, and whichever ones are to be kept last (default: false).",
		Spelled: []body.Spelled{body.AsFlag.As("pinned pin")},
	}
	createBody  = body.Options.With(snapshotOption)
	pauseBody   = body.Vocabulary{body.PauseMode}
	resumeBody  = body.Options
	timeoutBody = body.Vocabulary{deadlineOption}
	moveBody    = body.Vocabulary{
		{Name: "server", Doc: "The id of the server that it goes to (default: another one of the database that is alive).", Spelled: []body.Spelled{body.AsText.As("server serverID serverId server_id")}},
	}
	serverBody = body.Vocabulary{
		{Name: "draining", Doc: "Whether the server is drained: it gives its sandboxes, snapshots and built templates to other servers, one after the other, and serves meanwhile. It lasts until it is set to false.", Spelled: []body.Spelled{body.AsFlag.As("draining drain")}},
	}
	holdBody = body.Vocabulary{
		{Name: "reason", Doc: "What the hold is for.", Required: true, Spelled: []body.Spelled{body.AsText.As("reason")}},
		{Name: "seconds", Doc: "How long the hold lasts, from now.", Required: true, Spelled: []body.Spelled{body.InSomeSeconds.As("seconds")}},
		{Name: "id", Doc: "The id of the hold. The id of an existing hold extends it (default: a new id).", Spelled: []body.Spelled{body.AsText.As("id")}},
	}
	previewBody = body.Vocabulary{
		{Name: "port", Doc: "The port of a server in the sandbox.", Required: true, Spelled: []body.Spelled{body.AsPort.As("port")}},
		{Name: "expiresInSeconds", Doc: "How long the link is valid, at most 30 days (default: one hour). The end is rounded up to a whole second.",
			Spelled: []body.Spelled{body.InSomeSeconds.As("expiresInSeconds expiresIn expires_in expires_in_seconds ttl")}},
		{Name: "path", Doc: "The path that the link opens, with a query if needed (default: /). It is no restriction: the link gives access to the whole port.",
			Spelled: []body.Spelled{body.AsPath.As("path")}},
	}
	keyBody = append(body.Vocabulary{
		{Name: "name", Doc: "Who or what the key is for.", Required: true, Spelled: []body.Spelled{body.AsText.As("name")}},
		{Name: "role", Doc: "The role of the key (default: full).", Spelled: []body.Spelled{body.AsRole.As("role")}},
		{Name: "expiresInSeconds", Doc: "How long the key is valid (default: for ever).",
			Spelled: []body.Spelled{body.InSomeSeconds.As("expiresInSeconds expiresIn expires_in expires_in_seconds ttl")}},
	}, keyLimits(body.AsCount, " (default: no limit)", " (default: the server's --max-key-rate)")...)
	keyChangeBody = append(body.Vocabulary{
		{Name: "name", Doc: "Who or what the key is for.", Spelled: []body.Spelled{body.AsText.As("name")}},
	}, keyLimits(body.AsLimit, "; 0 for no limit", "; 0 for the server's --max-key-rate")...)
	rotateKeyBody = body.Vocabulary{
		{Name: "key", Doc: "The new text: e2b_ and 32 to 128 lowercase hex digits (default: one is made).", Spelled: []body.Spelled{body.AsText.As("key")}},
	}
	servicesBody = body.Vocabulary{
		{Name: "services", Doc: "All services that the sandbox is to have.", Required: true, Spelled: []body.Spelled{body.AsServices.As("services")}},
	}
	serviceBody = append(body.Vocabulary{
		{Name: "name", Doc: "The name in the path, or nothing.", Spelled: []body.Spelled{body.AsText.As("name")}},
	}, body.ServiceBody...)
	sshKeyBody = body.Vocabulary{
		{Name: "publicKey", Doc: "The line of a .pub file. Options before the key are rejected.", Required: true, Spelled: []body.Spelled{body.AsText.As("publicKey public_key key")}},
		{Name: "name", Doc: "What the key is called (default: its comment).", Spelled: []body.Spelled{body.AsText.As("name")}},
	}
	volumeBody = body.Vocabulary{
		{Name: "name", Doc: "The name: letters, digits, - and _, at most 128, unique among volumes.", Required: true, Spelled: []body.Spelled{body.AsText.As("name")}},
		{Name: "diskMiB", Doc: "How much it may hold, and one file for each 16 KiB of it; the server's --volume-disk if not said. Past it, all running sandboxes that have it are paused, and writes of its files are refused with volume_full.",
			Spelled: []body.Spelled{body.AsCount.As("diskMiB disk_mib")}},
	}
	snapshotBody = body.Vocabulary{
		{Name: "name", Doc: "What the snapshot is to be called: lower-case letters, digits, and . _ / : - between them, at most 128, unique among snapshots (default: none).", Spelled: []body.Spelled{body.AsText.As("name")}},
		{Name: "mode", Doc: "What the snapshot keeps (default: memory, or what the sandbox was paused with). " + body.FilesystemKeeps, Spelled: body.PauseMode.Spelled},
		{Name: "replace", Doc: "Take the name from the snapshot that has it, which is deleted (default: false: the snapshot is rejected).", Spelled: []body.Spelled{body.AsFlag.As("replace")}},
		{Name: "expiresInSeconds", Doc: "How long the snapshot is kept (default: for ever).", Spelled: []body.Spelled{body.InSomeSeconds.As("expiresInSeconds expiresIn expires_in expires_in_seconds ttl")}},
		{Name: "keepLast", Doc: "How many snapshots of the sandbox are kept that the API key has taken with keepLast, this one included; older ones are deleted, but for pinned ones (default: none is deleted, and this one is not deleted for a later one).", Spelled: []body.Spelled{body.AsCount.As("keepLast keep_last")}},
		pinnedOption,
	}
	snapshotChangeBody = body.Vocabulary{
		{Name: "expiresInSeconds", Doc: "How long the snapshot is kept from now.", Spelled: []body.Spelled{body.InSecondsOrNever.As("expiresInSeconds expiresIn expires_in expires_in_seconds ttl")}},
		pinnedOption,
	}
	restoreBody = body.Vocabulary{
		{Name: "snapshot", Doc: "The snapshot of this sandbox to go back to, by its id or name.", Spelled: snapshotOption.Spelled},
		{Name: "undo", Doc: "Go back to what the sandbox was before the last restore, instead of to a snapshot.", Spelled: []body.Spelled{body.AsFlag.As("undo")}},
		{Name: "mode", Doc: "What comes back (default: all that the snapshot has). " + body.FilesystemKeeps, Spelled: body.PauseMode.Spelled},
		{Name: "discard", Doc: "Do not keep what the sandbox is now (default: it is kept as a snapshot, for one undo). A running sandbox is then not captured first.", Spelled: []body.Spelled{body.AsFlag.As("discard")}},
	}
	forkBody = body.Vocabulary{
		{Name: "count", Doc: "How many sandboxes to start, 100 at most (default: 1).", Spelled: []body.Spelled{body.AsCount.As("count n")}},
		{Name: "timeoutSeconds", Doc: "The soft timeout of each (default: that of the sandbox).",
			Spelled: []body.Spelled{body.InSeconds.As("timeoutSeconds timeout_seconds timeout"), body.InMillis.As("timeoutMs timeout_ms")}},
	}
	templateBody = body.Vocabulary{
		{Name: "image", Doc: "A reference to an image in a registry, such as python:3.12 or ghcr.io/owner/name@sha256:...", Required: true, Spelled: []body.Spelled{body.AsText.As("image")}},
		{Name: "name", Doc: "What the template is to be called; the last part of the repository with its tag if not said. It takes the name from the template that has it.", Spelled: []body.Spelled{body.AsText.As("name")}},
	}
	pushBody = body.Vocabulary{
		{Name: "image", Doc: "Where the image goes, with a tag, such as ghcr.io/owner/name:1.", Required: true, Spelled: []body.Spelled{body.AsText.As("image")}},
	}
	templateNameBody = body.Vocabulary{
		{Name: "template", Doc: "The name or id of a template, or host for the host's own system.", Required: true, Spelled: []body.Spelled{body.AsText.As("template templateID templateId template_id")}},
	}
	flatPauseBody      = body.Vocabulary{sandboxOption, body.PauseMode}
	flatResumeBody     = append(body.Vocabulary{sandboxOption}, body.Options...)
	flatSetTimeoutBody = body.Vocabulary{sandboxOption, deadlineOption}
)

// keyLimits are the limits of an API key in one form, with what is said of each that is
// not given or taken away.
func keyLimits(form body.Form, none, serverRate string) body.Vocabulary {
	return body.Vocabulary{
		{Name: "maxRunning", Doc: "How many of the key's sandboxes may run at once" + none + ". A wake counts, whoever requests it.",
			Spelled: []body.Spelled{form.As("maxRunning max_running limits.maxRunning limits.max_running")}},
		{Name: "maxSandboxes", Doc: "How many sandboxes the key may have, paused ones included" + none + ".",
			Spelled: []body.Spelled{form.As("maxSandboxes max_sandboxes limits.maxSandboxes limits.max_sandboxes")}},
		{Name: "maxMemoryMiB", Doc: "Sum of the memory limits of the key's running sandboxes" + none + ".",
			Spelled: []body.Spelled{form.As("maxMemoryMiB max_memory_mib limits.maxMemoryMiB limits.max_memory_mib")}},
		{Name: "maxDiskMiB", Doc: "Sum of the disk limits of the key's sandboxes, paused ones included" + none + ". With a limit, a sandbox without a disk limit is rejected.",
			Spelled: []body.Spelled{form.As("maxDiskMiB max_disk_mib limits.maxDiskMiB limits.max_disk_mib")}},
		{Name: "maxRate", Doc: "How many calls of the API the key may make per second, after a pause ten times as many at once" + serverRate + ".",
			Spelled: []body.Spelled{form.As("maxRate max_rate limits.maxRate limits.max_rate")}},
	}
}
