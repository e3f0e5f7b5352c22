// Package settings has what an operator tells a server: the flags of "drowse
// serve". The command line fills them in, also where no server can be built, and
// the server reads them. A setting is a field here, a flag in package cli, and
// what the server does with it: nothing copies it in between.
package settings

import (
	"net/netip"
	"time"
)

// Files of the state directory that the command line of root on the same machine
// reads: they say where the server is, and let it in.
const (
	KeyFile         = "api-key"         // an admin's API key
	URLFile         = "url"             // the server's URL
	CertificateFile = "certificate.pem" // what the server shows at that URL, with TLS
)

// What a pause promises when it is answered: the checkpoint is on the disk of its server,
// or also in object storage.
const (
	Local      = "local"
	Replicated = "replicated"
)

// Server is what "drowse serve" was told.
type Server struct {
	Listen     string        // address, such as 127.0.0.1:3000
	SSHListen  string        // address for SSH clients; empty for none
	Domain     string        // wildcard domain under which sandboxes are reached; may be empty
	StateDir   string        // everything durable; made if missing
	Store      string        // URL of the PostgreSQL database with the records; empty for SQLite in StateDir
	PeerListen string        // address for the other servers of that database, at which they reach this one; empty for none
	Blobs      string        // URL of the object storage with copies of checkpoints; empty for none
	Durability string        // what a pause promises: Local or Replicated
	LogFormat  string        // text or json
	LogLevel   string        // debug, info, warn or error
	APIKey     string        // the first key; one is made if this is empty and there is none
	MaxTimeout time.Duration // the longest timeout granted; 0 for no bound

	// What applies where a sandbox does not say.
	DefaultTimeout         time.Duration // of sandboxes that E2B clients create; 0 for E2B's, negative for none
	DefaultOnTimeout       string        // kill or pause
	DefaultIdleTimeout     time.Duration // 0 for none
	DefaultOnIdle          string        // kill, pause or empty: as DefaultOnTimeout
	DefaultAutoResume      bool
	DefaultRefresh         string // work, requests or empty: nothing
	DefaultFallback        bool
	DefaultMaxLifetime     time.Duration // 0 for none
	DefaultCheckpointEvery time.Duration // 0 for never
	DefaultRetention       time.Duration // of paused sandboxes; 0 for ever
	StallAfter             time.Duration // how long work may stand still and count; 0 for ever

	SSHKeepalive   time.Duration  // how often SSH clients are asked whether they are there
	WakeTimeout    time.Duration  // how long a request waits for a sandbox to wake
	WakeQueue      int            // how many may wait for one
	Drain          time.Duration  // how long an automatic pause waits for requests in flight
	MaxRunning     int            // how many sandboxes run at once; 0 for no bound
	WarmRuntimes   int            // how many empty runtimes wait for the next start
	EarlyWakeMiB   int            // how large an image must be for its sandbox to run before all of it is read; 0 for none
	DeltaPausesMiB int            // how much memory a sandbox must use for its pause to write only the pages that have changed; 0 for none
	LightSleep     time.Duration  // how long the frozen runtime of a paused sandbox stays; 0 for none that does
	LightSleepMiB  int            // what all of them may hold; 0 for a quarter of the memory that is available
	LightFloorMiB  int            // what of the machine's memory is to stay available; 0 for a tenth
	DiskReadMiB    int            // what a sandbox may read from disk in a second; 0 for no limit
	DiskWriteMiB   int            // what it may write
	ShareOpt       bool           // sandboxes see the host's /opt
	Trial          bool           // a sandbox must start before the server is ready
	VolumeDiskMiB  int            // what a volume may hold that has no limit of its own; 0 for no limit
	DNS            netip.AddrPort // what resolves names for sandboxes; as on the machine if not valid
	EgressCA       string         // PEM file with authorities that are trusted, besides this machine's, where secrets go; empty for none
	OTLPEndpoint   string         // URL of a collector that gets traces; empty for none
	OTLPHeaders    string         // for it, as OTEL_EXPORTER_OTLP_HEADERS has them

	OnShutdown      string        // keep or pause
	ShutdownTimeout time.Duration // how long pausing may take

	TLSCert string // PEM file; empty for no TLS
	TLSKey  string // PEM file

	ACMEEmail     string // whose account gets the certificate; empty for none by ACME
	ACMEDirectory string // URL of the authority
	ACMECA        string // PEM file with authorities to trust for that URL; empty for this machine's
	ACMEDNSHook   string // program that sets and removes DNS records; empty for none

	MaxKeyRate           int           // calls of the API per second with one key that has no limit of its own; 0 for no bound
	MaxClientConnections int           // of one address; 0 for no bound
	MaxSandboxRequests   int           // under way in one sandbox; 0 for no bound
	IdleStream           time.Duration // how long nothing may pass; 0 for ever
	AccessLog            bool
}

// TLS says whether the server speaks it.
func (s Server) TLS() bool { return s.TLSCert != "" || s.ACMEEmail != "" }
