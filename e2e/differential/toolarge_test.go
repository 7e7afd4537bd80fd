package differential

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// A deletion whose answer is larger than what the client takes has happened, on etcd and over
// several shards: the client's library is what refuses.
func TestAnswerTooLargeForItsClient(t *testing.T) {
	l := newLayout(defaultShards)
	everything := &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true}
	var texts []string
	for _, s := range []*server{startEtcd(t, "etcd"), startShards(t, l, 1)} {
		for _, share := range l.shards {
			if _, err := s.kv.Txn(t.Context(), fatTxn(share[:3])); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.kv.DeleteRange(t.Context(), everything, grpc.MaxCallRecvMsgSize(4<<20))
		refused := status.Convert(err)
		text, _, _ := strings.Cut(refused.Message(), "(") // before the sizes
		texts = append(texts, refused.Code().String()+": "+text)
		left, err := s.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true})
		if err != nil || left.GetCount() != 0 {
			t.Errorf("%s: %d keys are left, %v", s.name, left.GetCount(), err)
		}
	}
	if texts[0] != texts[1] || !strings.HasPrefix(texts[0], "ResourceExhausted: "+messageTooLarge) {
		t.Errorf("the clients say %q", texts)
	}
}
