// Package egress decides what a sandbox may reach outside, and carries what it
// may.
//
// A [Policy] is made of what was asked for, and is pure: addresses that are
// closed to every sandbox, then rules for addresses and for names. A [Gate]
// holds one sandbox to its policy, which can change at any time. It takes the
// connections that leave the sandbox from sockets in the sandbox's network,
// judges each by the address it goes to or by the name that it asks for, and
// connects on from the server's own network. Where the address decides, it does so
// before the connection is taken, by its SYN. It also answers the sandbox's
// questions for names. So there is one place that says yes or no, and an address
// is judged where it is dialed: no name can come to mean another one in between.
//
// Only IPv4 is carried, because a sandbox has no IPv6 address, and only TCP.
package egress
