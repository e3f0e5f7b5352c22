package memstore

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/store"
)

// office is who does what only one server may do, and by which of its claims.
type office struct {
	server string
	epoch  int64
}

// owners is the part of a store that tells who has what.
type owners struct{ w *writer }

// Self implements store.Owners.
func (x owners) Self() string {
	x.w.d.mu.Lock()
	defer x.w.d.mu.Unlock()
	return x.w.server
}

// Sandbox implements store.Owners.
func (x owners) Sandbox(_ context.Context, id string) (store.Sandbox, error) {
	x.w.d.mu.Lock()
	defer x.w.d.mu.Unlock()
	has, err := x.w.d.known(id)
	if err != nil {
		return store.Sandbox{}, err
	}
	return has.read()
}

// Others implements store.Owners.
func (x owners) Others(context.Context) (map[string]string, error) {
	x.w.d.mu.Lock()
	defer x.w.d.mu.Unlock()
	all := map[string]string{}
	for id, sb := range x.w.d.boxes {
		if sb.given.Owner != x.w.server {
			all[id] = sb.given.Owner
		}
	}
	return all, nil
}

// Changes implements store.Owners.
func (x owners) Changes(context.Context) (map[store.Kind]int64, error) {
	x.w.d.mu.Lock()
	defer x.w.d.mu.Unlock()
	all := map[store.Kind]int64{
		store.KindKeys: 0, store.KindSSHKeys: 0, store.KindSecrets: 0, store.KindWebhooks: 0,
		store.KindVolumes: 0, store.KindSnapshots: 0, store.KindTemplates: 0, store.KindOwners: 0, store.KindEvents: 0,
	}
	maps.Copy(all, x.w.d.changes)
	for _, e := range slices.Backward(x.w.d.events) {
		if x.w.d.lives(e.birth) {
			all[store.KindEvents] = e.seq
			break
		}
	}
	return all, nil
}

// Elect implements store.Offices.
func (x owners) Elect(_ context.Context, name string) (string, error) {
	if err := x.w.lock(); err != nil {
		return "", err
	}
	defer x.w.d.mu.Unlock()
	if x.w.server == "" {
		return "", nil
	}
	now := time.Now()
	leads := func(o office) bool {
		srv := x.w.d.servers[o.server]
		return o.epoch > 0 && srv.Epoch == o.epoch && srv.LeaseEndsAt.After(now)
	}
	mine := office{x.w.server, x.w.epoch}
	if leads(mine) && !leads(x.w.d.offices[name]) {
		x.w.d.offices[name] = mine
	}
	if has := x.w.d.offices[name]; leads(has) {
		return has.server, nil
	}
	return "", nil
}

// Resign implements store.Offices.
func (x owners) Resign(_ context.Context, name string) error {
	if err := x.w.lock(); err != nil {
		return err
	}
	defer x.w.d.mu.Unlock()
	if x.w.d.offices[name] == (office{x.w.server, x.w.epoch}) {
		delete(x.w.d.offices, name)
	}
	return nil
}

// own refuses what would change a record of another server. It is called with the data
// locked, as what follows.
func (w *writer) own(what, id, owner string) error {
	if owner == w.server || planted.In(planted.DeafReturn) {
		return nil
	}
	return store.ErrElsewhere(what+" "+id, owner)
}

// adopt gives the only server all that has no owner.
func (d *Data) adopt(server string) {
	for id, box := range d.boxes {
		if box.given.Owner == "" {
			box.given.Owner = server
			d.boxes[id] = box
		}
	}
	for i := range d.snaps {
		if d.snaps[i].owner == "" {
			d.snaps[i].owner = server
			d.changed(store.KindSnapshots)
		}
	}
	for i := range d.volumes {
		if d.volumes[i].Owner == "" {
			d.volumes[i].Owner = server
			d.changed(store.KindVolumes)
		}
	}
	for id, t := range d.built {
		if t.owner == "" {
			t.owner = server
			d.built[id] = t
			d.changed(store.KindTemplates)
		}
	}
}

// changed counts a change of kinds of records.
func (d *Data) changed(kinds ...store.Kind) {
	for _, kind := range kinds {
		d.changes[kind]++
	}
}
