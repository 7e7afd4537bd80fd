package server

import (
	"regexp"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// A server tells at the default level who starts, which version, where it serves and
// what happens to the cluster, in a few lines.
func TestLogTellsWhatHappens(t *testing.T) {
	p := harness.NewProcess(t)
	c := p.Client()
	defer c.Close()
	ctx := t.Context()
	if _, err := c.RoleAdd(ctx, "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.UserAdd(ctx, "root", "a password"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.UserGrantRole(ctx, "root", "root"); err != nil {
		t.Fatal(err)
	}
	members, err := c.MemberList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{
		Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE, MemberID: members.Members[0].ID,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(); err != nil {
		t.Fatal(err)
	}
	log := p.Log.String()
	for _, want := range []string{
		`INFO msg=starting version=0\.1\.0 commit=\S+ name=default id=\w+ data_dir=` + regexp.QuoteMeta(p.Dir),
		`INFO msg="leader elected" node\.name=default node\.id=\w+ term=\d+ here=true`,
		`INFO msg="serving clients" addresses=\[` + regexp.QuoteMeta(p.Addr) + `\] id=\w+ cluster=\w+ shards=\d+`,
		`INFO msg="auth changed" user=root change=added`,
		`INFO msg="auth changed" role=root change=added`,
		`INFO msg="auth switched" on=true`,
		`WARN msg="alarm raised" alarm=NOSPACE node\.name=default node\.id=\w+`,
		`INFO msg=stopping`,
	} {
		if n := len(regexp.MustCompile(`(?m)level=`+want+`$`).FindAllString(log, -1)); n != 1 {
			t.Errorf("%d lines match %s in:\n%s", n, want, log)
		}
	}
	if strings.Contains(log, "password") || strings.Count(log, "\n") > 20 {
		t.Errorf("the log is not a few lines without secrets:\n%s", log)
	}
}
