package api

import pb "go.etcd.io/etcd/api/v3/etcdserverpb"

// headers fills the headers of answers.
type headers struct {
	cluster Cluster
	// revision returns an issued revision that this node knows.
	revision func() int64
}

// of returns a header with revision rev.
func (h headers) of(rev int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{
		ClusterId: h.cluster.ClusterID(),
		MemberId:  h.cluster.MemberID(),
		Revision:  rev,
		RaftTerm:  h.cluster.Term(),
	}
}

// current returns a header with the newest revision that this node knows.
func (h headers) current() *pb.ResponseHeader { return h.of(h.revision()) }

// fill completes a header that came from below with a revision alone, or makes
// one. A revision of zero is replaced by the newest that this node knows.
func (h headers) fill(rh *pb.ResponseHeader) *pb.ResponseHeader {
	if rh == nil {
		return h.current()
	}
	if rh.Revision == 0 {
		rh.Revision = h.revision()
	}
	rh.ClusterId = h.cluster.ClusterID()
	rh.MemberId = h.cluster.MemberID()
	rh.RaftTerm = h.cluster.Term()
	return rh
}
