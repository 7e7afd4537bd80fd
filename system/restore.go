package system

import (
	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/auth"
)

// Restore writes users, roles and an order of revisions that was begun elsewhere, where no
// system shard has been opened yet. A cluster that is made from there on goes on with them.
func Restore(b *pebble.Batch, prefix []byte, users *auth.State, order OrderRecord) error {
	out := records{b: b, prefix: prefix}
	out.set(orderKey(), order)
	out.set(settingsKey(), users.Settings)
	for name, u := range users.Users {
		out.set(userKey(name), u)
	}
	for name, role := range users.Roles {
		out.set(roleKey(name), role)
	}
	return out.err
}
