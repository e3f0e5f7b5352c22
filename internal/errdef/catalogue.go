package errdef

import (
	"cmp"
	"net/http"
	"slices"
)

// Entry is what is known of a code, whoever gives it.
type Entry struct {
	Code    string
	Class   Class
	given   giver
	Meaning string // what happened
	Remedy  string // what to do, where the error itself does not say
}

// giver says which dialects give a code.
type giver string

const (
	neither giver = "neither" // it shows on the command line or in the log
	native  giver = "native"
	inE2B   giver = "e2b"
	both    giver = "both"
)

// e2bStatuses are the codes whose status in the E2B dialect is another than Status.
var e2bStatuses = map[string]int{
	"checkpoint_damaged":    http.StatusInternalServerError,
	"checkpoint_unreadable": http.StatusInternalServerError,
	"form_unknown":          http.StatusBadRequest,
	"memory_not_capturable": http.StatusBadRequest,
	"no_overlayfs":          http.StatusBadRequest,
	"not_running":           http.StatusNotFound,
	"replica_damaged":       http.StatusInternalServerError,
	"replica_too_new":       http.StatusBadRequest,
	"secrets_unreadable":    http.StatusInternalServerError,
	"volume_exists":         http.StatusBadRequest,
	"volume_full":           http.StatusInsufficientStorage,
}

// Native returns the HTTP status of the code in the native dialect, 0 if that never
// gives it.
func (e Entry) Native() int {
	if e.given == neither || e.given == inE2B {
		return 0
	}
	return Status(&Error{Class: e.Class, Code: e.Code})
}

// E2B is Native for the E2B dialect.
func (e Entry) E2B() int {
	if e.given == neither || e.given == native {
		return 0
	}
	return cmp.Or(e2bStatuses[e.Code], Status(&Error{Class: e.Class, Code: e.Code}))
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
	{"action_invalid", Invalid, both, "The action of a clock must be kill or pause.", "Use kill or pause."},
	{"agent_refused", Invalid, neither, "The agent in the sandbox refused a call of the mitos dialect. Its words are in the message.", "Correct what the message names."},
	{"agent_too_old", Unsupported, native, "The agent in the sandbox is of a version from before there were services.", "Pause the sandbox with mode filesystem and resume it."},
	{"agent_unreachable", Unavailable, both, "The agent in the sandbox did not answer.", "Try again in a moment."},
	{"already_paused", Conflict, both, "The sandbox is already paused.", "Nothing to do; resume it if you need it running."},
	{"already_running", Conflict, inE2B, "The sandbox is already running.", "Connect to it: that extends its timeout."},
	{"ambiguous_field", Invalid, both, "The field can mean two different things.", "Use one of the fields that the message names."},
	{"api_key_expired", Unauthorized, both, "The API key has expired.", "Ask an admin for a new one (drowse keys create)."},
	{"api_key_malformed", Unauthorized, both, "The text is not an API key.", `Send the whole key: "e2b_" followed by lowercase hex digits.`},
	{"api_key_missing", Unauthorized, both, "The request has no API key.", "Send it in the X-API-Key header, or as a bearer token."},
	{"api_key_unknown", Unauthorized, both, "This server does not know the API key, or it was revoked.", "Use a key of this server. The first one is in the file api-key of its state directory."},
	{"auto_resume_needs_memory", Invalid, both, "autoResume is on, but automatic pauses keep only the files, and no service starts again after them.", "Keep memory in automatic pauses, give the sandbox a service with resume, or turn autoResume off."},
	{"auto_resume_needs_pause", Invalid, both, "autoResume is on, but no setting ever pauses the sandbox.", "Set onTimeout or onIdle to pause, with a timeout, or turn autoResume off."},
	{"backup_damaged", Internal, neither, "Files of a backup are missing, or are not what was backed up.", "Use another backup."},
	{"backup_elsewhere", Invalid, neither, "A backup is restored to another path than it was made of. Templates and layers in it have that path.", "Restore it to the state directory that it is of."},
	{"backup_format", Unsupported, neither, "The backup has a format that this drowse does not read.", "Use the drowse that made it, or a newer one."},
	{"backup_incomplete", Internal, neither, "Files that a sandbox or a snapshot needs were removed while they were copied, so no backup was made.", "Back up again. If a server runs that is older than this drowse, restart it first."},
	{"backup_inside", Invalid, neither, "The backup was to be made inside the state directory.", "Name a directory elsewhere, best on another disk."},
	{"backup_under_way", Conflict, neither, "The state directory is being backed up, so nothing in it may be removed or repaired.", "Wait until the backup has ended."},
	{"bad_acme_hook", Invalid, neither, "The program that is to set DNS records for the server's certificate is not there, or cannot be executed.", "Give the absolute path of an executable file with --acme-dns-hook."},
	{"bad_certificate", Invalid, neither, "The server's TLS certificate cannot be read, or does not match its key.", "Give a PEM certificate chain with --tls-cert and its key with --tls-key."},
	{"binary_not_static", Unfit, both, "The server's binary loads libraries of the host, and no sandbox can start with it.", "Build it with make build, or with CGO_ENABLED=0."},
	{"blob_key_invalid", Invalid, neither, "A key under which data is to be stored has characters that no key has, or is too long.", "Report this as an issue: keys are made by drowse."},
	{"blob_not_found", NotFound, neither, "Nothing is stored under a key.", "See whether somebody else removes what drowse has stored."},
	{"blob_too_large", Invalid, neither, "What is stored under a key is larger than what drowse has stored there.", "See whether somebody else writes to the bucket or the directory."},
	{"blobs_unavailable", Unavailable, neither, "The bucket or the directory for copies does not answer, has no room, or refuses what is asked.", "See the message. It is tried again."},
	{"blobs_unusable", Invalid, neither, "The bucket or the directory for copies cannot be used: its URL is malformed, it does not exist, or this server may not write to it.", "Correct what the message names."},
	{"body_timed_out", Invalid, both, "The body of the request did not arrive in time.", "Send it again without pauses."},
	{"body_too_large", Invalid, both, "The body of the request is larger than 1 MiB.", "Send less; upload files through the file endpoints."},
	{"build_exists", Exists, inE2B, "A build of another template has the id.", "Ask for another build."},
	{"build_files_invalid", Invalid, inE2B, "The hash of the files of a build's step is malformed.", "Send 64 lower-case hexadecimal digits, as the SDKs do."},
	{"build_files_missing", Invalid, inE2B, "A step of the build copies files that are not on the server.", "Upload them, and start the build again."},
	{"build_files_too_large", Invalid, inE2B, "The files of a step of the build are larger than a server takes.", "Copy less, or have a command of the build fetch them."},
	{"build_not_found", NotFound, inE2B, "The template has no build with this id, or it is no longer kept.", "Ask for another build."},
	{"build_started", Invalid, inE2B, "The build was started already.", "Ask for another build."},
	{"build_step_invalid", Invalid, inE2B, "A step of the build cannot be meant, or is not supported.", "Correct the step that the message names."},
	{"canceled", Unavailable, both, "The client disconnected before the answer.", "Check the sandbox's state: the operation may have been carried out."},
	{"cannot_run_here", Unsupported, native, "This server lacks something that the imported sandbox's memory needs: the architecture, the gVisor version, the template, the host's programs, or features of the processor.", "Import it on a machine like the original one, or without its memory (mode=filesystem, --filesystem), so that it boots from its files. An import on another architecture is not possible."},
	{"checkpoint_damaged", Unavailable, both, "Files of the sandbox's checkpoint are damaged. The sandbox stays paused, and its files are left as they are.", "Restore the files from a backup and resume again, or kill the sandbox. drowse fsck on the server shows what else is damaged."},
	{"checkpoint_every_too_small", Invalid, both, "Periodic checkpoints would be too frequent: each one interrupts the sandbox.", "Give 10 seconds or more, or 0 for none."},
	{"checkpoint_unreadable", Unavailable, both, "The sandbox's memory cannot be restored here: another version of the runtime wrote it, or files of the host that its programs use have changed. The sandbox stays paused.", "Set its filesystemFallback to boot it from its files, reinstall the version of drowse or the files that it was paused with, or kill it."},
	{"checkpointed", Unavailable, neither, "A checkpoint of the running sandbox closed the connection.", "Connect again: the sandbox is running."},
	{"context_not_found", NotFound, neither, "The sandbox has no such context of the sandbox0 dialect.", "List its contexts."},
	{"contradicting_options", Invalid, both, "The body gives one option twice, with different values.", "Give it once."},
	{"create_failed", NotFound, both, "The sandbox failed to start and was removed.", "Try again; drowse doctor checks what this machine lacks."},
	{"database_damaged", Internal, both, "The server's database is damaged.", "Restore it from a backup, or move it away and start with an empty one."},
	{"database_too_new", Unsupported, neither, "The server's database was written by a newer version.", "Use that version, or a newer one."},
	{"database_too_old", Unsupported, neither, "The server's database was written by an older version, and was left as it is.", "Use that version, or start this one as the server first."},
	{"descriptors_exhausted", Unfit, both, "The server or its host has no free file descriptors, so no sandbox can start.", "Raise LimitNOFILE of the service or the sysctl fs.file-max."},
	{"directory_is_shared", Invalid, neither, "The state directory is below a host directory that every sandbox can see.", "Use a directory elsewhere, such as /var/lib/drowse."},
	{"directory_not_empty", WrongState, neither, "The directory has entries, and was to be removed as an empty one.", "Remove its entries first."},
	{"directory_unusable", Invalid, neither, "The directory for a backup, or to restore one to, cannot be read.", "Name a directory that does not exist, or is empty."},
	{"disk_full", Unavailable, both, "The disk of the state directory is full.", "Kill sandboxes that are not needed, or free space on the server."},
	{"egress_ca_invalid", Invalid, neither, "The file of --egress-ca cannot be read, or has no certificate.", "Name a file with certificates in PEM."},
	{"event_not_found", NotFound, inE2B, "There is no event with this id, or it is no longer kept.", "List the events."},
	{"exec_timeout", Exhausted, neither, "A command or a cell of code ran longer than it may.", "Raise the timeout of the call, or split the work."},
	{"fenced", Fenced, both, "Another process has taken the place of this server, with a copy of its state directory. Nothing was changed.", "Try again: the other one answers. The operator stops one of the two."},
	{"field_too_large", Invalid, both, "A field is too large. The message names the field and its limit.", "Store large data in a file in the sandbox."},
	{"files_changed", Conflict, native, "Files have changed while a snapshot was read to be sent out: those of the host, or of a template.", "Try again."},
	{"fork_count_invalid", Invalid, both, "The number of children of a fork is out of range.", "Ask for 1 to 100."},
	{"form_unknown", Unsupported, both, "A database record has a version that this server does not know.", "Use the server version that wrote it, or a newer one."},
	{"has_volumes", Unsupported, native, "The sandbox has volumes, whose files are on its server, and was to move to another.", "Leave it where it is; volumes stay on the server that has made them."},
	{"hold_not_found", NotFound, native, "The sandbox has no hold with this id.", "List its holds; this one may have expired."},
	{"idempotency_key_reused", Conflict, both, "The Idempotency-Key was already used for a different create or import.", "Send the same body to the same path, or use a new key for another sandbox."},
	{"idempotency_key_used", Conflict, both, "The Idempotency-Key has made a sandbox already, through another server.", "Go on with that sandbox, or use a new key for another one."},
	{"idempotency_sandbox_ended", Conflict, both, "The sandbox that was created or imported with this Idempotency-Key has ended. No second one is created with the same key.", "Use a new key for another sandbox."},
	{"idle_timeout", NotFound, both, "The sandbox has ended: it was idle for its idle timeout.", "Create a new one with a longer idleTimeout, put a hold on it while it works, or set onIdle to pause."},
	{"image_credentials", Invalid, native, "The credentials for a registry cannot be read.", "See ~/.docker/config.json of the user that the server runs as."},
	{"image_damaged", Invalid, native, "An image, or a layer of it, is not what its digests say, or ends too early. Nothing of it was kept.", "Fetch it again, or build it again."},
	{"image_denied", Forbidden, native, "A registry refuses an image to the server. Some say so of what does not exist.", "Run docker login as the user that the server runs as, or check the name."},
	{"image_invalid", Invalid, native, "An image cannot be used as it is: it has names or links that lead out of it, is no image of files, or contradicts itself.", "See the message; build it in another way."},
	{"image_not_found", NotFound, native, "A registry has no such image.", "Check the name and the tag."},
	{"image_reference_invalid", Invalid, native, "What should name an image does not.", "Use a reference such as python:3.12 or ghcr.io/owner/name:tag."},
	{"image_registry_untrusted", Unfit, native, "A registry has a certificate that the server's host does not trust.", "Add the authority that signed it to those of the host, and restart the server."},
	{"image_too_large", Exhausted, native, "An image has more bytes, files or layers than are unpacked, or expands too far.", "Build a smaller one."},
	{"image_unavailable", Unavailable, native, "A registry cannot be reached, or broke off.", "Try again. Layers that were finished are not fetched again."},
	{"image_wrong_platform", Unsupported, native, "An image is for another platform than the server runs.", "Use one for the server's platform; nothing is emulated."},
	{"import_damaged", Invalid, native, "The file is not a complete and unchanged export. Nothing of it is kept.", "Copy the file again, or export the sandbox again."},
	{"import_too_new", Unsupported, native, "The export was written by a newer version.", "Import it with that version, or a newer one."},
	{"internal_server_error", Internal, both, "The server failed. The answer has an id under which its log shows the cause.", "Look for the id in the log; report it if it is a fault of drowse."},
	{"invalid_api_key_preset", Invalid, neither, "The API key given to the server is malformed, or it is known as a key that expires or is not an admin key.", `Make one with: echo "e2b_$(openssl rand -hex 20)"`},
	{"invalid_request", Invalid, both, "The request is invalid: the body is not JSON, a value has the wrong type, a required field is missing, or a parameter is malformed.", "Correct what the message names; /v1/openapi.json describes every request."},
	{"kernel_too_old", Unsupported, neither, "The kernel lacks a system call that the server needs, or does not permit it.", "Use Linux 5.10 or later; in a container, allow the call."},
	{"key_exists", Exists, neither, "An API key with this id or text already exists.", "Create another one."},
	{"key_invalid", Invalid, both, "The name, role or limits of the API key are invalid.", "Use the role admin, full, own or read, and a name of one line."},
	{"key_limit_reached", Exhausted, both, "The API key's sandboxes have reached one of its limits: running sandboxes, all sandboxes, memory, or disk. A wake counts too, whoever requests it.", "Pause or kill some, use a key with larger limits, or have an admin raise those of this key with drowse keys limit."},
	{"key_name_taken", Exists, both, "Another API key has the name.", "Use another name, or revoke that key first."},
	{"key_not_found", NotFound, both, "There is no API key with this id.", "List the keys (GET /v1/keys, drowse keys ls)."},
	{"key_rate_exceeded", Exhausted, both, "The API key makes more calls per second than its own limit, or the server's limit for each key, allows.", "Wait a second, then try again. An admin raises the key's limit with drowse keys limit, an operator that of all keys with --max-key-rate."},
	{"last_admin_key", Conflict, both, "This is the last admin key that does not expire. Without it, no key could be created any more.", "Create another admin key first."},
	{"lease_lapsed", Unavailable, both, "The database has not renewed the lease of this server for longer than is safe. Nothing was changed.", "Try again in a moment. If it goes on, the operator sees whether the server reaches its database."},
	{"lifetime_over", Invalid, native, "The max lifetime of the imported sandbox has ended.", "Nothing: this sandbox cannot be imported any more."},
	{"limit_out_of_range", Invalid, both, "The requested CPUs, memory, disk or tasks are more than this server grants, or too few to start.", "Request what the message names, or leave the limit out."},
	{"listen_failed", Invalid, neither, "The server cannot listen on this address.", "Use an address of this machine, such as 127.0.0.1:3000."},
	{"max_lifetime_exceeded", NotFound, both, "The sandbox has ended: its max lifetime was reached.", "Create a new one with a longer maxLifetime, or without one."},
	{"memory_not_capturable", WrongState, both, "Something that is open in the sandbox cannot be saved with its memory. The sandbox runs on.", "Close what the message names, or pause with mode filesystem, which keeps the files alone."},
	{"memory_pending", Unavailable, both, "Part of the sandbox's memory is still to be read from object storage, from where this server has taken the sandbox over. It stays paused.", "Try again once object storage answers."},
	{"method_not_allowed", Invalid, both, "The path does not support this method.", "Use a method that the Allow header lists."},
	{"mode_invalid", Invalid, both, "The pause mode must be memory or filesystem.", "Use memory or filesystem."},
	{"mount_forbidden", Forbidden, neither, "The kernel does not allow the server to mount overlayfs.", "Run it as root with CAP_SYS_ADMIN; a container needs --privileged."},
	{"move_conflict", Conflict, native, "The sandbox is being moved to another server already.", "Wait until that has ended, and see where it is."},
	{"name_invalid", Invalid, native, "The name of a sandbox may have only letters, digits, - and _, and has a maximum length.", "Use another name."},
	{"name_taken", Exists, native, "Another sandbox of the API key has the name and has not ended.", "Use another name, or kill that sandbox first."},
	{"namespaces_exhausted", Unfit, both, "The server's host allows no more namespaces, so no sandbox can start.", "Raise the sysctls user.max_*_namespaces on the host."},
	{"network_invalid", Invalid, both, "A network rule is invalid, or rules conflict: a name is denied, or a name is allowed while everything else is open.", "Use IP addresses and networks. allowOut also takes names, such as example.com or *.example.com, together with 0.0.0.0/0 in denyOut."},
	{"no_agent", Internal, neither, "The binary was built without the agent that runs in sandboxes.", "Build it with make build."},
	{"no_backup", Invalid, neither, "The directory has no backup, or one that was cut off.", "Name the directory of a backup."},
	{"no_cgroups", Unfit, both, "The host has no cgroups that the server can use, or a controller is missing.", "Follow the message: it says what is missing and how to enable it."},
	{"no_disk_rates", Unfit, neither, "The server was asked to limit the disk rates of sandboxes, and its kernel or the file system of its state directory cannot.", "Leave out --disk-read-rate and --disk-write-rate, or see what drowse doctor says of disk rates."},
	{"no_nftables", Unfit, both, "The server's host has no nftables with TPROXY, so no sandbox can start.", "Load the modules nf_tables and nft_tproxy on the host."},
	{"no_object_storage", Unsupported, native, "Sandboxes move between servers by way of object storage, and this server has none.", "Start all servers with the same --blobs."},
	{"no_other_server", WrongState, native, "There is no other server that the sandbox could move to.", "See drowse servers; start another one with --peer-listen and --blobs."},
	{"no_overlayfs", Unsupported, both, "The kernel does not have overlayfs.", "Load the module overlay, or use another kernel."},
	{"no_veth", Unfit, both, "The server's host has no veth interfaces, so no sandbox can start.", "Load the module veth on the host."},
	{"not_a_database", Invalid, neither, "The server's database file is not a database.", "Move the file away."},
	{"not_changeable", Invalid, both, "The option cannot be changed after a sandbox was created.", "Use the call that the message names, or create another sandbox."},
	{"not_paused", WrongState, native, "The sandbox is running; this needs a paused one.", "Pause it first."},
	{"not_portable", Unsupported, native, "The sandbox has files that an export cannot contain, or too many.", "Remove them inside the sandbox, pause it again, and export it then."},
	{"not_privileged", Unfit, both, "The server lacks the privileges to create namespaces for sandboxes.", "Run it as root on the host, or in a privileged container."},
	{"not_replicated", Conflict, neither, "Another server cannot go on with a sandbox: the copy in object storage is not one of its last checkpoint.", "Start the server again that has the sandbox."},
	{"not_resumable", WrongState, both, "The sandbox is paused, and this request may not wake it.", "Resume it, or allow requests to wake it with autoResume and the port's policy."},
	{"not_root", Forbidden, neither, "The server was not started as root.", "Start it with sudo."},
	{"not_running", WrongState, both, "The sandbox is paused; this needs a running one.", "Resume it first."},
	{"not_supported", Unsupported, both, "The endpoint or field is not implemented. (The E2B dialect answers 400 for a field.)", "Leave it out, or use a newer version if there is one."},
	{"on_another_server", Conflict, both, "The request names things that several servers have, each some of them.", "Name only what one server has."},
	{"otlp_endpoint_invalid", Invalid, neither, "--otlp-endpoint is no URL of a collector.", "Name the collector's address for OTLP over HTTP, such as http://localhost:4318."},
	{"otlp_headers_invalid", Invalid, neither, "--otlp-headers cannot be read.", "Write headers like Authorization=Bearer%20TOKEN,X-Tenant=NAME."},
	{"out_of_disk", NotFound, both, "The sandbox has ended: it was over its disk limit, and there was no space left to pause it.", "Create a new one with a larger disk limit, or store less in it."},
	{"out_of_memory", NotFound, both, "The sandbox has ended: it was over its memory limit.", "Create a new one with more memory, or run less at once."},
	{"out_of_processes", NotFound, both, "The sandbox has ended: it reached its limit on tasks, and its runtime needed another one.", "Create a new one with a larger limit, or start fewer processes at once."},
	{"overtaken", Unavailable, both, "The sandbox was changed by another operation in the meantime.", "Try again."},
	{"pause_failed", Unavailable, both, "The pause failed. The sandbox runs on, and nothing is lost.", "See the cause; often the disk is full. Automatic pauses are retried."},
	{"paused_expired", NotFound, both, "The sandbox has ended: its paused retention was reached.", "Create a new one with a longer pausedRetention, or resume it in time."},
	{"port_in_use", Conflict, neither, "Another program already listens on the server's address.", "Stop it, or choose another address with --listen."},
	{"port_invalid", Invalid, both, "This is not a port, or not a port and path.", "Use a number from 1 to 65535; a rule may add a plain path, such as 8080/healthz."},
	{"preview_expired", Forbidden, neither, "The preview link has expired.", "Ask for a new one."},
	{"preview_invalid", Forbidden, neither, "This is not a preview link to this port of this sandbox.", "Use the whole link as it was created."},
	{"preview_not_found", NotFound, native, "The sandbox has no preview link with this id.", "List its links; this one may have expired."},
	{"preview_revoked", Forbidden, neither, "The preview link was revoked.", "Ask for a new one."},
	{"processes_exhausted", Unfit, both, "The server's host cannot start more processes, so no sandbox can start.", "Raise the limit that was reached: TasksMax of the service, kernel.pid_max or kernel.threads-max."},
	{"put_to_sleep", Unavailable, neither, "The sandbox was paused while the stream or request was open. This is the reason given to a stream, and the error_code of a request without an answer.", "Resume it with connect; where autoResume is on, the next request wakes it."},
	{"record_changed", Conflict, both, "Another server changed the sandbox meanwhile; this change was not made.", "Try again."},
	{"refresh_needs_timeout", Invalid, both, "refreshOnActivity is on, but there is no timeout to restart.", "Set a timeout."},
	{"replica_damaged", Unavailable, both, "The copy of the sandbox's checkpoint in object storage is not whole, or not as it was written.", "Start the server that had the sandbox: its checkpoint is there."},
	{"replica_not_found", NotFound, neither, "The object storage has no copy of a checkpoint of the sandbox.", "Pause the sandbox: what is asleep is copied."},
	{"replica_pending", Unavailable, both, "Object storage has no copy of the sandbox's checkpoint yet.", "Wait: it is copied in the background. The message says what failed, if something did."},
	{"replica_too_new", Unsupported, both, "The copy of the sandbox's checkpoint in object storage was written by a newer version.", "Use that version on this server too, or a newer one."},
	{"restore_failed", Unavailable, both, "The sandbox did not go back to the snapshot, because what it is now could not be kept. It runs on as it was.", "Try again, or have the state before discarded; the message and the event log say what failed."},
	{"restore_unfinished", Conflict, neither, "Another restore to this directory is under way, or was cut off.", "If none is under way, remove the directory that the message names, and restore again."},
	{"restored", Unavailable, neither, "The sandbox went back to a snapshot while the stream or request was open. This is the reason given to a stream, and the error_code of a request without an answer.", "Connect again: it runs on from there."},
	{"result_too_large", Exhausted, neither, "A result of code is larger than is passed on in one message.", "Write it to a file, and read that."},
	{"resume_failed", Unavailable, both, "The resume failed. The sandbox stays paused, and its checkpoint is unchanged.", "Try again; the server's log shows the cause."},
	{"role_insufficient", Forbidden, both, "The role of the API key does not allow this.", "Use a key with a role that the message names."},
	{"runtime_exists", Exists, neither, "A runtime with this id already exists.", "See the server's log."},
	{"runtime_exited", NotFound, both, "The sandbox has ended: its runtime failed, or was killed from outside.", "Create a new one; the host's log may show the cause."},
	{"runtime_gone", Unavailable, both, "The runtime of the sandbox has just ended.", "Check the sandbox's state."},
	{"runtime_lost", NotFound, both, "The sandbox has ended: its runtime was gone when the server restarted.", "Create a new one. A sandbox that was paused at least once goes back to its checkpoint instead."},
	{"runtime_not_found", NotFound, neither, "The runtime does not exist.", "See the server's log."},
	{"sandbox_create_failed", Unavailable, both, "The sandbox did not start.", "See the server's log; drowse doctor checks what this machine lacks."},
	{"sandbox_exists", Exists, both, "A sandbox with this id already exists.", "Use another id: ids are never reused."},
	{"sandbox_not_found", NotFound, both, "There is no such sandbox, and none ended in the last 30 days.", "List the sandboxes."},
	{"sandbox_not_terminated", WrongState, neither, "The server tried to forget a sandbox that has not ended.", "See the server's log."},
	{"sandbox_terminated", NotFound, both, "The sandbox was killed. (Other ends have their own codes, such as timeout_expired.) For 30 days its tombstone says why, when and by whom.", "Create a new one."},
	{"secret_exists", Exists, native, "The API key has another secret of this name.", "Choose another name."},
	{"secret_invalid", Invalid, both, "The secret, or its use in a sandbox, is not as it must be.", "See the message."},
	{"secret_not_found", NotFound, both, "The API key has no secret of this name.", "List its secrets (GET /v1/secrets, drowse secret ls)."},
	{"secrets_limit", Exhausted, native, "The API key has as many secrets as it may have.", "Remove one first."},
	{"secrets_not_supported", Forbidden, inE2B, "The routes of E2B's secrets are not served: these do not say for which hosts a secret is.", "Set the secret with its hosts (PUT /v1/secrets/{name}, drowse secret set), and name it in secrets of the create."},
	{"secrets_unreadable", Unavailable, both, "The server cannot decrypt the values of secrets: the file secrets.key in its state directory is missing, damaged or another one.", "Put the file back from a backup and restart the server, or set the secrets anew."},
	{"server_drained", WrongState, native, "The server is drained: it gives what it has to others, and nothing moves to it.", "Choose another, or undo it (drowse drain --undo)."},
	{"server_lives", Conflict, neither, "Another process writes to the database as this server, and its lease lasts.", "Stop that process, or wait until it has not renewed its lease."},
	{"server_not_found", NotFound, native, "The database knows no such server.", "See drowse servers for those that there are."},
	{"server_unreachable", Unavailable, both, "Another server has what the request is for, and does not answer.", "Send it again: with `--blobs`, another server goes on with what slept there, in 15 s at most. Else see why that server is down, and start it again; what it had asleep is there then."},
	{"service_invalid", Invalid, both, "A service of the sandbox cannot be meant. The message names it and what is wrong.", "Correct what the message names."},
	{"service_not_found", NotFound, native, "The sandbox has no service of this name.", "List its services."},
	{"service_not_ready", Unavailable, both, "The service that the request is for is not ready. The message says what it ended of, if it did.", "See its log (drowse service logs), and try again."},
	{"signature_expired", Forbidden, inE2B, "The address for an upload was given out too long ago.", "Ask for another one."},
	{"signature_invalid", Forbidden, inE2B, "The address for an upload was not given out by this server, or was changed.", "Ask for one."},
	{"snapshot_exists", Exists, both, "A snapshot with this name already exists.", "Choose another name, or delete that snapshot first."},
	{"snapshot_failed", Unavailable, both, "No snapshot was taken. The sandbox is unchanged, and still runs.", "Try again; the message and the event log say what failed."},
	{"snapshot_fixes_option", Invalid, both, "A sandbox that starts with the memory of a snapshot cannot have another value of this option.", "Leave the option out."},
	{"snapshot_gone", NotFound, both, "The snapshot that a sandbox was to start from, or to go back to, was removed meanwhile. Nothing has changed.", "List the snapshots, and choose another."},
	{"snapshot_name_invalid", Invalid, both, "The name of a snapshot may have only lower-case letters, digits, and . _ / : - between them, and has a maximum length.", "Use another name."},
	{"snapshot_not_found", NotFound, both, "There is no such snapshot.", "List the snapshots."},
	{"snapshot_of_other", Invalid, both, "A sandbox goes back to its own snapshots only, and this one was taken of another sandbox.", "Start a new sandbox from that snapshot."},
	{"snapshot_of_template", Conflict, native, "The snapshot belongs to a template that was built, and is not changed or deleted by itself.", "Choose another snapshot or name, or delete or build the template."},
	{"snapshot_removed", Conflict, native, "The snapshot was removed while it was read to be sent out.", "Take another snapshot. The image has not got its name."},
	{"snapshot_unfit", Invalid, native, "The snapshot has a file that an OCI image cannot have, such as one with a name that marks removed files there.", "Rename or remove the file in a sandbox, and take another snapshot."},
	{"snapshot_without_memory", Invalid, both, "The snapshot has files only, and its memory was asked for.", "Leave the mode out: the sandbox boots from the files."},
	{"ssh_key_exists", Exists, native, "The API key has this SSH key already.", "Nothing: who has the key gets in."},
	{"ssh_key_invalid", Invalid, native, "This is no public key of SSH that the server takes.", "Send the line of a .pub file; ssh-keygen -t ed25519 makes one."},
	{"ssh_key_not_found", NotFound, native, "The API key has no SSH key with this id.", "List its SSH keys (GET /v1/ssh-keys, drowse ssh-keys ls)."},
	{"ssh_keys_limit", Exhausted, native, "The API key has as many SSH keys as it may have.", "Remove one first."},
	{"state_dir", Invalid, neither, "The server cannot create its state directory.", "Choose another with --state-dir."},
	{"state_dir_in_use", Conflict, neither, "Another server uses this state directory.", "Stop that server, or use another directory with --state-dir."},
	{"state_dir_unusable", Unsupported, neither, "The file system of the state directory cannot hold the layers of sandboxes.", "Choose a directory on ext4, xfs or btrfs with --state-dir."},
	{"store_in_use", Conflict, neither, "The database has records already that this server cannot share: its state directory has records of its own, or the servers could not reach each other.", "Servers that share a database need `--peer-listen`, and all but the first an empty state directory. Or give this one a database of its own."},
	{"store_invalid", Invalid, neither, "The URL of the store cannot be used.", "Give it as postgres://USER@HOST:5432/DATABASE."},
	{"store_mismatch", Conflict, neither, "The records of the state directory are in another database than that of --store.", "Give the URL of the database that the server was started with, or of a copy of it."},
	{"store_missing", Invalid, neither, "The records of the state directory are in PostgreSQL, and the server was not told where.", "Give it --store again."},
	{"store_not_empty", Exists, neither, "The database to which records were to be copied has records already. Nothing was changed.", "Give an empty database."},
	{"store_refuses", Invalid, neither, "PostgreSQL refuses the user, the database or the rights of the store's URL.", "See the message, and mend the URL, the password or the rights."},
	{"store_refuses_text", Invalid, both, "A text has bytes that the server's database does not store.", "Leave out what is not UTF-8, and the character U+0000."},
	{"store_unavailable", Unavailable, both, "The server cannot read or write its database.", "See the message; often the disk is full."},
	{"target_not_empty", Conflict, neither, "The directory for a backup, or to restore one to, is not empty. Nothing in it was changed.", "Name a directory that does not exist, or is empty."},
	{"template_changed", Conflict, both, "The template was changed by somebody else meanwhile, and is as that change has left it.", "Try again."},
	{"template_differs", Exhausted, neither, "A template of the mitos dialect was given two networks or sizes at once.", "Try again in a moment."},
	{"template_exists", Exists, inE2B, "Another template has the name: one that is not built of steps, or one of the API key.", "Choose another name."},
	{"template_in_use", Conflict, native, "Sandboxes that have not ended started from the template.", "End the sandboxes that the message names first."},
	{"template_is_built_in", Conflict, native, "The template is the host's own system, which cannot be removed.", "Give the name another meaning with drowse template set."},
	{"template_name_invalid", Invalid, both, "A template cannot have this name.", "Use lower-case letters, digits, - and _, with a tag after a colon if you like."},
	{"template_not_found", NotFound, both, "There is no such template.", "Use one that exists, such as base."},
	{"template_settings_too_large", Invalid, neither, "What a client of the mitos dialect says of a template is more than is kept.", "Allow fewer addresses and names."},
	{"template_tag_fixed", Invalid, inE2B, "The tag \"default\" of a template cannot be removed.", "Delete the template, or build it again."},
	{"template_tag_not_found", NotFound, inE2B, "The template has no such tag.", "List its tags."},
	{"template_unreadable", Internal, neither, "The server does not start, because it cannot read what a template was built from. Nothing is changed.", "Put back a copy of the file, or move it away and do without the template."},
	{"template_was_built", Invalid, native, "A name of the server cannot stand for a template that was built of steps.", "Name the template in each create; or send it out as an image and fetch that."},
	{"timed_out", Unavailable, both, "The operation took too long.", "Check the sandbox's state, and try again."},
	{"timeout_expired", NotFound, both, "The sandbox has ended: its timeout was reached.", "Create a new one with a longer timeout, extend it in time, or set onTimeout to pause."},
	{"timeout_invalid", Invalid, both, "A duration is negative, too short, or 0 where 0 has no meaning.", "Give a positive duration, or none for no limit."},
	{"timeout_too_large", Invalid, both, "A duration is longer than the server allows. It is never shortened silently.", "Request less, or start the server with a larger --max-timeout."},
	{"too_many_answers", Exhausted, both, "The answers that clients have not taken yet have reached the limit of the server, of a client address or of an API key.", "Read the answers that are there, then try again, or ask for less at once."},
	{"too_many_bodies", Exhausted, both, "The bodies of open requests have reached the limit of the server, of a client address or of an API key.", "Wait for requests to end, then try again."},
	{"too_many_builds", Exhausted, inE2B, "The API key has as many builds that are not over as it may have.", "Wait until some are over, or delete their templates."},
	{"too_many_contexts", Exhausted, neither, "The sandbox has as many contexts of the sandbox0 dialect as it may have, or they take too much room.", "Delete some."},
	{"too_many_event_streams", Exhausted, native, "Events are followed as many times at once as the API key, or all keys together, may.", "End some of the streams, or ask for events without follow."},
	{"too_many_files", Exhausted, both, "The sandbox has more files and directories, or longer names, than a pause can list. Each name of a file counts.", "Remove files that are not needed inside the sandbox, or pack them into archives."},
	{"too_many_holds", Exhausted, native, "The sandbox has reached its limit of holds.", "Release some, or extend one by its id."},
	{"too_many_layers", Exhausted, neither, "The sandbox has more layers than the kernel can mount.", "See the server's log for why its layers were not merged."},
	{"too_many_previews", Exhausted, native, "The sandbox has reached its limit of preview links.", "Revoke some, or let them expire."},
	{"too_many_sandboxes", Exhausted, both, "The server has reached its limit of running sandboxes.", "Pause or kill one, or start the server with a larger --max-running."},
	{"too_many_sessions", Exhausted, neither, "The API key, its address or all together have as many sessions and connections that last as they may.", "Close some, then try again."},
	{"too_many_snapshots", Exhausted, both, "The API key has as many snapshots as it may have.", "Delete some of them."},
	{"too_many_tags", Exhausted, inE2B, "The template has as many tags as it may have.", "Remove some."},
	{"too_many_templates", Exhausted, inE2B, "The API key has built as many templates as it may have.", "Delete some."},
	{"too_many_webhooks", Exhausted, inE2B, "The server has reached its limit of webhooks.", "Delete some."},
	{"trial_failed", Internal, neither, "The trial sandbox, which the server starts to test the host, failed.", "See the message, and run drowse doctor."},
	{"undo_is_kept", Invalid, both, "How long the state before a restore is kept cannot be changed.", "Restore the sandbox to it, then take a snapshot."},
	{"undo_not_found", NotFound, both, "The sandbox did not go back to a snapshot before, or what it was before then is not kept any more.", "Name a snapshot of the sandbox."},
	{"unknown_field", Invalid, both, "The body or the query has an unknown field.", "Use the field that the message suggests, or leave it out."},
	{"unknown_path", NotFound, both, "The path is not part of the API.", "See /v1/openapi.json."},
	{"upload_broken", Invalid, inE2B, "The connection broke off before all files of an upload had come.", "Send them again."},
	{"volume_exists", Exists, both, "A volume with this name already exists.", "Choose another name, or use the existing volume."},
	{"volume_full", Exhausted, inE2B, "The volume has reached its disk limit, or would with this write.", "Remove files from the volume, or use one with a larger limit."},
	{"volume_in_use", Conflict, both, "The volume is mounted in sandboxes that have not ended.", "Kill the sandboxes that the message names first."},
	{"volume_mount_invalid", Invalid, both, "The volume does not exist, or cannot be mounted at this path: it is not absolute, another volume has it, or the sandbox needs it.", "Create the volume first, and give an absolute path of its own, such as /mnt/data."},
	{"volume_name_invalid", Invalid, both, "The name of a volume may have only letters, digits, - and _, and has a maximum length.", "Use another name."},
	{"volume_not_found", NotFound, both, "There is no such volume.", "List the volumes."},
	{"volume_path_conflict", Conflict, inE2B, "The path in the volume already exists, or is being changed by somebody else.", "Choose another path, or try again."},
	{"volume_path_invalid", Invalid, inE2B, "The path leads out of the volume, or is not a file or directory as required.", "Use another path."},
	{"volume_path_not_found", NotFound, inE2B, "The path does not exist in the volume.", "List the directory."},
	{"volume_token_invalid", Unauthorized, inE2B, "The request lacks the volume's token.", "Send the token from GET /volumes/{id} as a bearer token."},
	{"wait_timeout", Unavailable, both, "The operation that the call waits for is still in progress.", "Check the sandbox's state, and try again."},
	{"wake_queue_full", Unavailable, both, "Too many requests wait for the sandbox to wake, or for a service of it to be ready.", "Try again in a moment."},
	{"webhook_invalid", Invalid, inE2B, "The webhook lacks a field, or its URL cannot be used.", "Give a name, an http or https URL without a password, event types and a secret."},
	{"webhook_not_found", NotFound, inE2B, "There is no webhook with this id.", "List the webhooks."},
}
