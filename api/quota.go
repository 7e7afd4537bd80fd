package api

import (
	"context"
	"log/slog"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// DefaultQuotaBytes is the quota where none is set, etcd's.
const DefaultQuotaBytes = int64(2) << 30

// What etcd reckons for a key or a lease beside the bytes that the client sent.
const (
	keyOverhead   = 256
	leaseOverhead = 64
)

// admission keeps the store from growing beyond its quota, and refuses what the
// raised alarms forbid.
type admission struct {
	cluster Cluster
	// size returns the logical size in bytes of all retained versions and of the leases.
	size func() int64
	// quota is in bytes; negative means none.
	quota int64
	log   *slog.Logger
}

// reserve refuses a request that would add cost bytes where there is no room,
// after it has raised the NOSPACE alarm. A request that costs nothing passes.
func (a *admission) reserve(ctx context.Context, cost int) error {
	if cost == 0 || a.quota < 0 || a.size()+int64(cost) < a.quota {
		return nil
	}
	if !a.raised(pb.AlarmType_NOSPACE) {
		if _, err := a.cluster.RaiseAlarm(ctx, a.cluster.MemberID(), pb.AlarmType_NOSPACE); err != nil {
			a.log.LogAttrs(ctx, slog.LevelWarn, "raising the alarm failed",
				slog.String("alarm", pb.AlarmType_NOSPACE.String()), slog.Any("error", err))
		}
	}
	return errNoSpace
}

// write refuses a write whose caller has gone, and one that an alarm forbids.
// Under NOSPACE that is what makes the store grow: deletions, compactions and the
// ends of leases make room.
func (a *admission) write(ctx context.Context, grows bool) error {
	if err := ctx.Err(); err != nil {
		return toStatus(err)
	}
	alarms := a.cluster.Alarms()
	if len(alarms) == 0 {
		return nil
	}
	if hasAlarm(alarms, pb.AlarmType_CORRUPT) {
		return errCorrupt
	}
	if grows && hasAlarm(alarms, pb.AlarmType_NOSPACE) {
		return errNoSpace
	}
	return nil
}

func (a *admission) raised(kind pb.AlarmType) bool {
	return hasAlarm(a.cluster.Alarms(), kind)
}

// hasAlarm tells whether any member raised an alarm of this kind.
func hasAlarm(alarms []*pb.AlarmMember, kind pb.AlarmType) bool {
	for _, m := range alarms {
		if m.GetAlarm() == kind {
			return true
		}
	}
	return false
}

// costPut is what etcd reckons that a put adds, in bytes.
func costPut(r *pb.PutRequest) int {
	return keyOverhead + len(r.GetKey()) + len(r.GetValue())
}

// costTxn is the cost of a transaction's dearer branch, nested ones included.
func costTxn(r *pb.TxnRequest) int {
	return max(costBranch(r.GetSuccess()), costBranch(r.GetFailure()))
}

func costBranch(ops []*pb.RequestOp) int {
	sum := 0
	for _, op := range ops {
		if p := op.GetRequestPut(); p != nil {
			sum += costPut(p)
		} else if t := op.GetRequestTxn(); t != nil {
			sum += costTxn(t)
		}
	}
	return sum
}
