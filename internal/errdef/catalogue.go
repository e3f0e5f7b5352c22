package errdef

import "slices"

// Entry is what is known of a code, whoever gives it.
type Entry struct {
	Code  string
	Class Class
	// Native and E2B are the HTTP statuses of the code in the two dialects; 0
	// for one that never gives it. An error of both 0 shows on the command line
	// or in the log.
	Native, E2B int
	Meaning     string // what happened
	Remedy      string // what to do, where the error itself does not say
}

// Catalogue returns every code that is used anywhere, sorted. A test holds it
// against the source.
func Catalogue() []Entry {
	return slices.Clone(catalogue)
}

// Lookup returns what is known of a code.
func Lookup(code string) (Entry, bool) {
	i := slices.IndexFunc(catalogue, func(e Entry) bool { return e.Code == code })
	if i < 0 {
		return Entry{}, false
	}
	return catalogue[i], true
}

// catalogue is sorted by code.
var catalogue = []Entry{
	{"action_invalid", Invalid, 400, 400, "An action of a clock is neither kill nor pause.", "Use kill or pause."},
	{"already_paused", Conflict, 409, 409, "The sandbox is paused already, so there is nothing to pause.", "Nothing, or resume it."},
	{"already_running", Conflict, 0, 409, "The sandbox runs already, so there is nothing to resume.", "Connect to it: that extends its timeout."},
	{"ambiguous_field", Invalid, 400, 400, "A field could mean two things, and stands alone.", "Use a field that the message names."},
	{"api_key_expired", Unauthorized, 401, 401, "The API key was good, and its time has passed.", "Ask for a new one; an admin makes it with drowse keys create."},
	{"api_key_malformed", Unauthorized, 401, 401, "The API key has not the form of one.", `Send the whole key: "e2b_" followed by lowercase hex digits.`},
	{"api_key_missing", Unauthorized, 401, 401, "The request has no API key.", "Send it in the X-API-Key header, or as a bearer token."},
	{"api_key_unknown", Unauthorized, 401, 401, "The API key is none of this server's.", "Use a key of this server; its first one is in the file api-key of its state directory."},
	{"auto_resume_needs_memory", Invalid, 400, 400, "autoResume is on, but automatic pauses keep only the file system, and traffic does not boot a sandbox.", "Keep memory in automatic pauses, or turn autoResume off."},
	{"auto_resume_needs_pause", Invalid, 400, 400, "autoResume is on, but nothing ever pauses the sandbox by itself.", "Set onTimeout or onIdle to pause, with a timeout, or turn autoResume off."},
	{"bad_certificate", Invalid, 0, 0, "The server's TLS certificate cannot be read, or its key is another one's.", "Give a PEM certificate chain with --tls-cert and its key with --tls-key."},
	{"body_timed_out", Invalid, 408, 408, "The body of the request did not come to its end in time.", "Send it again, without pauses."},
	{"body_too_large", Invalid, 413, 413, "The body of the request is larger than 1 MiB.", "Send less; files have an endpoint of their own."},
	{"canceled", Unavailable, 503, 503, "The client went away before the answer.", "Nothing: what was asked for may have been done all the same."},
	{"cannot_run_here", Unsupported, 501, 0, "This server lacks something that the imported sandbox needs to go on from its memory: the architecture, the gVisor version, the template, the host's own programs, features of the processor.", "Import it on a machine like the one it comes from, or without its memory (mode=filesystem, --filesystem): it then boots afresh from its files. That helps on no other architecture."},
	{"checkpoint_damaged", Unavailable, 503, 503, "Files of the sandbox's checkpoint are not what was written. It stays paused, runs no code, and its files are left as they are.", "Put the files back from a backup and resume again, or kill the sandbox; drowse fsck on the server says what else is damaged."},
	{"checkpoint_every_too_small", Invalid, 400, 400, "Checkpoints while it runs would follow each other too closely: each interrupts it.", "Give 10 seconds or more, or 0 for none."},
	{"checkpoint_unreadable", Unavailable, 503, 503, "The sandbox's memory cannot be restored here: another version of the runtime wrote it, or files of the host that its programs run from have changed since. It stays paused.", "Set its filesystemFallback to boot it afresh from its files, put back the drowse or the files that it was paused with, or kill it."},
	{"checkpointed", Unavailable, 0, 0, "The connection was ended by a checkpoint of the running sandbox. It is why a stream ends.", "Connect again: the sandbox runs on."},
	{"contradicting_options", Invalid, 400, 400, "The body says one thing in two spellings that do not agree.", "Give one of them."},
	{"create_failed", NotFound, 404, 404, "The sandbox never came up, and what had been made of it was removed.", "Try again; drowse doctor checks what this machine lacks."},
	{"database_damaged", Internal, 500, 500, "The server's database is damaged.", "Restore it from a backup, or move it away and start anew."},
	{"database_too_new", Unsupported, 0, 0, "The server's database was written by a newer version.", "Use that version, or a newer one."},
	{"descriptors_exhausted", Unfit, 501, 501, "The server or its host has no more file descriptors, so that no sandbox starts.", "Raise LimitNOFILE of the service or the sysctl fs.file-max."},
	{"directory_is_shared", Invalid, 0, 0, "The state directory lies below a directory of the host that every sandbox sees.", "Use a directory elsewhere, such as /var/lib/drowse."},
	{"disk_full", Unavailable, 503, 503, "The disk of the state directory has too little space left to begin anything.", "Kill sandboxes that are not needed, or make room on the server."},
	{"event_not_found", NotFound, 0, 404, "There is no event of that id, or it is not kept any more.", "List the events."},
	{"field_too_large", Invalid, 400, 400, "A field is larger than a sandbox may have it; the message says which, and how large it may be.", "Keep what is larger in a file of the sandbox."},
	{"form_unknown", Unsupported, 501, 400, "A record in the database has a form that this version does not know.", "Use the version that wrote it, or a newer one."},
	{"hold_not_found", NotFound, 404, 0, "The sandbox has no hold of that id.", "List its holds: this one may have run out."},
	{"idempotency_key_reused", Conflict, 422, 422, "The Idempotency-Key of a create or an import has been used for one that asked for something else.", "Send the same body to the same path, or use another key for another sandbox."},
	{"idempotency_sandbox_ended", Conflict, 409, 409, "The sandbox that the Idempotency-Key of a create or an import has made has ended. Another is not made under the same key.", "Use another key for another sandbox."},
	{"idle_timeout", NotFound, 404, 404, "The sandbox has ended: nothing happened in it for its idle timeout.", "Create a new one with a longer idleTimeout, hold it while it works, or set onIdle to pause."},
	{"image_credentials", Invalid, 400, 0, "The credentials for a registry cannot be read.", "See ~/.docker/config.json of the user that the server runs as."},
	{"image_damaged", Invalid, 400, 0, "An image, or a layer of it, is not what its digests say, or ends too early. Nothing of it was kept.", "Fetch it again, or build it again."},
	{"image_denied", Forbidden, 403, 0, "A registry refuses an image to the server. Some say so of what does not exist.", "Run docker login as the user that the server runs as, or check the name."},
	{"image_invalid", Invalid, 400, 0, "An image cannot be used as it is: it has names or links that lead out of it, is no image of files, or contradicts itself.", "See the message; build it in another way."},
	{"image_not_found", NotFound, 404, 0, "A registry has no such image.", "Check the name and the tag."},
	{"image_reference_invalid", Invalid, 400, 0, "What should name an image does not.", "Use a reference such as python:3.12 or ghcr.io/owner/name:tag."},
	{"image_too_large", Exhausted, 429, 0, "An image has more bytes, files or layers than are unpacked, or expands too far.", "Build a smaller one."},
	{"image_unavailable", Unavailable, 503, 0, "A registry cannot be reached, or broke off.", "Try again. Layers that were finished are not fetched again."},
	{"image_wrong_platform", Unsupported, 501, 0, "An image is for another platform than the server runs.", "Use one for the server's platform; nothing is emulated."},
	{"import_damaged", Invalid, 400, 0, "What was sent is not a whole and unchanged export of a sandbox. Nothing of it is kept.", "Copy the file again, or export the sandbox again."},
	{"import_too_new", Unsupported, 501, 0, "The export was written by a newer version.", "Import it with that version, or a newer one."},
	{"internal_server_error", Internal, 500, 500, "The server failed. The answer has the id under which its log has the cause.", "Look into the log; report it if it is a fault of drowse."},
	{"invalid_api_key_preset", Invalid, 0, 0, "The API key that the server was told to accept has not the form of one, or is known as one that is no admin's or expires.", `Make one with: echo "e2b_$(openssl rand -hex 20)"`},
	{"invalid_request", Invalid, 400, 400, "The request cannot be understood: a body that is no JSON, a value of the wrong type, a required field that is missing, a malformed parameter.", "Send what the message asks for; /v1/openapi.json has the forms."},
	{"kernel_too_old", Unsupported, 0, 0, "The kernel lacks a system call that the server needs, or forbids it.", "Use Linux 5.10 or later; in a container, allow the call."},
	{"key_exists", Exists, 0, 0, "An API key with that id or text exists.", "Make another."},
	{"key_invalid", Invalid, 400, 400, "A new API key was to have a name, a role or limits that none can have.", "Use the role admin, full, own or read, and a name of one line."},
	{"key_limit_reached", Exhausted, 429, 429, "The sandboxes that the API key has made take as much together as they may: how many run, how many there are, or the memory of those that run. A wake counts as well, whoever asks for it.", "Pause or kill some, or use a key with larger limits."},
	{"key_not_found", NotFound, 404, 404, "There is no API key of that id.", "List the keys: GET /v1/keys, drowse keys ls."},
	{"last_admin_key", Conflict, 409, 409, "No key would be left with which another could be made: the last admin key that does not expire stays.", "Make another admin key first."},
	{"lifetime_over", Invalid, 400, 0, "The lifetime of the imported sandbox is over.", "Nothing: it may not exist any more."},
	{"limit_out_of_range", Invalid, 400, 400, "What was asked for of CPUs, memory or tasks is more than this server grants, or too little to start.", "Ask for what the message names, or leave it out."},
	{"listen_failed", Invalid, 0, 0, "The server cannot listen on the address that it was given.", "Give it one of this machine, such as 127.0.0.1:3000."},
	{"max_lifetime_exceeded", NotFound, 404, 404, "The sandbox has ended: its maximum lifetime is over.", "Create a new one with a longer maxLifetime, or with none."},
	{"method_not_allowed", Invalid, 405, 405, "The path exists and does not take this method.", "Use one that the Allow header lists."},
	{"mode_invalid", Invalid, 400, 400, "A pause mode is neither memory nor filesystem.", "Use memory or filesystem."},
	{"mount_forbidden", Forbidden, 0, 0, "The kernel does not let the server mount an overlayfs.", "Run it as root with CAP_SYS_ADMIN; a container needs --privileged."},
	{"namespaces_exhausted", Unfit, 501, 501, "The server's host allows no more namespaces, so that no sandbox starts.", "Raise the sysctls user.max_*_namespaces on the host."},
	{"network_invalid", Invalid, 400, 400, "A rule for what a sandbox may reach is none, or they cannot be together: a name is denied, or allowed while all else is open.", "Use addresses and networks, and in allowOut also names such as example.com or *.example.com, with 0.0.0.0/0 in denyOut."},
	{"no_agent", Internal, 0, 0, "The binary was built without the agent that runs in sandboxes.", "Build it with make build."},
	{"no_cgroups", Unfit, 501, 501, "The host has no cgroups in which the server can limit sandboxes, or a controller is missing.", "See the message: it says what is missing and how to get it."},
	{"no_nftables", Unfit, 501, 501, "The server's host has no nftables with TPROXY, so that no sandbox starts.", "Load the modules nf_tables and nft_tproxy on the host."},
	{"no_overlayfs", Unsupported, 501, 400, "The kernel has no overlayfs.", "Load the module, or use another kernel."},
	{"no_veth", Unfit, 501, 501, "The server's host has no veth interfaces, so that no sandbox starts.", "Load the module veth on the host."},
	{"not_a_database", Invalid, 0, 0, "The file in the database's place is none.", "Move it away."},
	{"not_changeable", Invalid, 400, 400, "The option is fixed when a sandbox is created.", "Use the verb that the message names, or create another sandbox."},
	{"not_paused", WrongState, 409, 0, "The sandbox runs, and this needs a paused one.", "Pause it first."},
	{"not_portable", Unsupported, 501, 0, "The sandbox has something on its disk that no export can hold, or too much of it.", "Remove that inside the sandbox, pause it again, and export it then."},
	{"not_privileged", Unfit, 501, 501, "The server runs without the privileges to make a sandbox's namespaces.", "Run it as root on the host, or in a privileged container."},
	{"not_resumable", WrongState, 409, 409, "The sandbox is paused, and this traffic may not wake it.", "Resume it by a call, or allow traffic to wake it with autoResume and the port's policy."},
	{"not_root", Forbidden, 0, 0, "The server was not started as root.", "Start it with sudo."},
	{"not_running", WrongState, 409, 404, "The sandbox is paused, and this needs a running one.", "Resume it first."},
	{"not_supported", Unsupported, 501, 501, "The endpoint, or what a field asks for, is not built yet. (The E2B dialect answers 400 for a field.)", "Leave it out, or wait for a newer version."},
	{"out_of_disk", NotFound, 404, 404, "The sandbox has ended: its files took more than its limit, and there was no room to pause it.", "Create a new one with a larger disk limit, or let it keep less."},
	{"out_of_memory", NotFound, 404, 404, "The sandbox has ended: it took more memory than its limit.", "Create a new one with more memory, or let it do less at once."},
	{"out_of_processes", NotFound, 404, 404, "The sandbox has ended: it took as many tasks of the host as its limit allows, and its runtime needed another.", "Create a new one with a larger limit on processes, or let it start fewer at once."},
	{"overtaken", Unavailable, 503, 503, "Something else changed the sandbox meanwhile.", "Try again."},
	{"pause_failed", Unavailable, 503, 503, "The sandbox could not be paused and runs on; nothing is lost.", "See the cause; a full disk is a likely one. Automatic pauses are tried again."},
	{"paused_expired", NotFound, 404, 404, "The sandbox has ended: it was paused for longer than it may be.", "Create a new one with a longer pausedRetention, or resume it in time."},
	{"port_in_use", Conflict, 0, 0, "Another program listens on the server's address.", "Stop it, or choose another address with --listen."},
	{"port_invalid", Invalid, 400, 400, "What should name a port, or a path of one, does not.", "Use a number from 1 to 65535; in rules for traffic a plain path may follow, such as 8080/healthz."},
	{"preview_expired", Forbidden, 0, 0, "The preview link was good, and its time has passed.", "Ask for a new one."},
	{"preview_invalid", Forbidden, 0, 0, "What was given is no preview link to this port of this sandbox.", "Use the whole link as it was made."},
	{"preview_not_found", NotFound, 404, 0, "The sandbox has no preview link of that id.", "List its links: this one may have expired."},
	{"preview_revoked", Forbidden, 0, 0, "The preview link was revoked before its time.", "Ask for a new one."},
	{"processes_exhausted", Unfit, 501, 501, "The server's host starts no more processes, so that no sandbox starts.", "Raise the limit that is reached: TasksMax of the service, kernel.pid_max, kernel.threads-max."},
	{"put_to_sleep", Unavailable, 0, 0, "The sandbox was put to sleep while the stream or request was open. It is why a stream ends, and the error_code of a request that had no answer yet.", "Resume it with connect; where autoResume is on, the next request wakes it."},
	{"refresh_needs_timeout", Invalid, 400, 400, "refreshOnActivity is on, but there is no timeout to begin anew.", "Set a timeout."},
	{"resume_failed", Unavailable, 503, 503, "The sandbox could not be resumed and stays paused; its checkpoint is untouched.", "Try again; the server's log has the cause."},
	{"role_insufficient", Forbidden, 403, 403, "The API key is good, but its role does not allow this.", "Use a key of a role that the message names."},
	{"runtime_exists", Exists, 0, 0, "A runtime of that id exists.", "See the server's log."},
	{"runtime_exited", NotFound, 404, 404, "The sandbox has ended: its runtime was ended from outside, or failed.", "Create a new one; the host's log may say more."},
	{"runtime_gone", Unavailable, 503, 503, "The runtime of the sandbox has just ended.", "Ask for the sandbox's state."},
	{"runtime_lost", NotFound, 404, 404, "The sandbox has ended: its runtime was gone when the server came back.", "Create a new one; a sandbox that has been paused once survives this."},
	{"runtime_not_found", NotFound, 0, 0, "A runtime that was looked for does not exist.", "See the server's log."},
	{"sandbox_create_failed", Unavailable, 503, 503, "The sandbox did not start.", "See the server's log; drowse doctor checks what this machine lacks."},
	{"sandbox_exists", Exists, 409, 409, "A sandbox of that id exists.", "Ids are not reused."},
	{"sandbox_memory_override_disabled", Unsupported, 0, 400, `"memory": false was asked for at resume: a sandbox that was paused with memory resumes with it.`, "Leave it out."},
	{"sandbox_not_found", NotFound, 404, 404, "There is no such sandbox, and none that ended in the last 30 days.", "List the sandboxes."},
	{"sandbox_not_terminated", WrongState, 0, 0, "The record of a sandbox that has not ended was to be forgotten.", "See the server's log."},
	{"sandbox_terminated", NotFound, 404, 404, "The sandbox has ended because somebody killed it. Other ends have codes of their own, such as timeout_expired. For 30 days its tombstone says why, when and by whom.", "Create a new one."},
	{"secrets_not_supported", Forbidden, 0, 403, "The server does not keep secrets and put them into what sandboxes send.", "Give the sandbox an environment variable, or have it ask a proxy of yours that adds the secret."},
	{"state_dir", Invalid, 0, 0, "The server cannot make its state directory.", "Choose another with --state-dir."},
	{"state_dir_in_use", Conflict, 0, 0, "Another server uses the state directory.", "Stop it, or give this one a directory of its own with --state-dir."},
	{"state_dir_unusable", Unsupported, 0, 0, "The file system of the state directory cannot hold the layers of sandboxes.", "Choose a directory on ext4, xfs or btrfs with --state-dir."},
	{"store_unavailable", Unavailable, 503, 503, "The server's database cannot be written or read.", "See the message; a full disk is a likely cause."},
	{"template_not_found", NotFound, 404, 404, "There is no such template.", "Use one that exists, such as base."},
	{"timed_out", Unavailable, 504, 504, "It took too long.", "Ask for the sandbox's state, and try again."},
	{"timeout_expired", NotFound, 404, 404, "The sandbox has ended: its timeout ran out.", "Create a new one with a longer timeout, extend it in time, or set onTimeout to pause."},
	{"timeout_invalid", Invalid, 400, 400, "A duration is negative, too short to count, or 0 where that would mean nothing.", "Give a positive duration, or none for no limit."},
	{"timeout_too_large", Invalid, 400, 400, "A duration is longer than is granted. Nothing is ever cut short unasked.", "Ask for less, or start the server with a larger --max-timeout."},
	{"too_many_bodies", Exhausted, 429, 429, "The requests under way have as many bytes of bodies as the server, a client address or an API key may have.", "Wait for requests to end, then try again."},
	{"too_many_files", Exhausted, 429, 429, "A sandbox has more files and directories than a pause can list, or longer names. Each name of a file counts.", "Remove what is not needed inside the sandbox, or pack it into archives."},
	{"too_many_holds", Exhausted, 429, 0, "The sandbox has as many holds as it may.", "Release some, or prolong one by its id."},
	{"too_many_layers", Exhausted, 0, 0, "A sandbox has more layers than the kernel can mount over each other.", "See the server's log for why its layers were not merged."},
	{"too_many_previews", Exhausted, 429, 0, "The sandbox has as many preview links as it may.", "Revoke some, or let them expire."},
	{"too_many_sandboxes", Exhausted, 429, 429, "As many sandboxes run as this server allows.", "Pause or end one, or start the server with a larger --max-running."},
	{"too_many_webhooks", Exhausted, 0, 429, "The server has as many webhooks as it may.", "Delete some."},
	{"trial_failed", Internal, 0, 0, "The trial sandbox that the server starts first did not start.", "See the message, and drowse doctor."},
	{"unknown_field", Invalid, 400, 400, "The body or the query has a field that is not known here.", "Use the one that the message suggests, or leave it out."},
	{"unknown_path", NotFound, 404, 404, "The path is not part of the API.", "See /v1/openapi.json."},
	{"volume_exists", Exists, 409, 400, "A volume of that name is there already.", "Choose another name, or use that one."},
	{"volume_full", Exhausted, 0, 507, "The volume takes as much of the disk as it may, or would with what is to be written.", "Remove files from the volume, or use one with a larger limit."},
	{"volume_in_use", Conflict, 409, 409, "The volume is mounted in sandboxes that have not ended.", "End the sandboxes that the message names first."},
	{"volume_mount_invalid", Invalid, 400, 400, "A sandbox asks for a volume that does not exist, or at a path where none can be mounted: one that is not absolute, that another volume has, or that the sandbox needs.", "Create the volume first, and give an absolute path of its own, such as /mnt/data."},
	{"volume_name_invalid", Invalid, 400, 400, "The name of a volume has other characters than letters, digits, - and _, or too many.", "Use another name."},
	{"volume_not_found", NotFound, 404, 404, "There is no such volume.", "List the volumes."},
	{"volume_path_conflict", Conflict, 0, 409, "What is to be made in a volume is there already, or changes as fast as it is removed.", "Choose another path, or look again."},
	{"volume_path_invalid", Invalid, 0, 400, "A path in a volume is not one of what was asked for: it leads out of the volume, or to something that is no file or no directory.", "Use another path."},
	{"volume_path_not_found", NotFound, 0, 404, "There is nothing at the path in the volume.", "List the directory."},
	{"volume_token_invalid", Unauthorized, 0, 401, "The request has not the token of the volume.", "Send the token that GET /volumes/{id} has, as a bearer token."},
	{"wait_timeout", Unavailable, 503, 503, "The operation that the call waits for is still in flight.", "Ask for the sandbox's state, and try again."},
	{"wake_queue_full", Unavailable, 503, 503, "More accesses wait for the sandbox to wake than the server lets wait.", "Try again in a moment."},
	{"webhook_invalid", Invalid, 0, 400, "What a webhook is to be lacks something, or its URL is none that can be delivered to.", "Give it a name, an http or https URL without a password in it, types of events and a secret."},
	{"webhook_not_found", NotFound, 0, 404, "There is no webhook of that id.", "List the webhooks."},
}
