package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/sink"
)

// unknownRights is what a broker answers that does not tell permissions.
const unknownRights = -2147483648

var _ sink.Prober = (*Sink)(nil)

// Probe implements sink.Prober. It describes both topics, with our rights on
// them, and the transactional id, and asks whether what is missing could be
// made. It writes nothing: taking the transactional id would fence a running
// query.
func (s *Sink) Probe(ctx context.Context) error {
	cl, err := s.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	var faults []string
	for _, t := range []struct {
		name   string
		rights map[string]int32
	}{
		{s.opts.Topic, map[string]int32{"write": 1 << kmsg.ACLOperationWrite}},
		{s.markerTopic(), map[string]int32{"read": 1 << kmsg.ACLOperationRead, "write": 1 << kmsg.ACLOperationWrite}},
	} {
		fault, err := s.probeTopic(ctx, cl, t.name, t.rights)
		if err != nil {
			return s.explain(err, "describe topic "+t.name)
		}
		faults = append(faults, fault...)
	}
	fault, err := s.probeTransaction(ctx, cl)
	if err != nil {
		return s.explain(err, "describe transactional id "+s.transactionalID())
	}
	if faults = append(faults, fault...); len(faults) > 0 {
		return failure.New(failure.Config, "%s: %s", s.who(), strings.Join(faults, "; ")).
			WithHint("give this user the permissions, or make the topics by hand (%s with one partition and cleanup.policy=compact)", s.markerTopic())
	}
	return nil
}

func (s *Sink) probeTopic(ctx context.Context, cl *kgo.Client, name string, rights map[string]int32) (faults []string, err error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, fmt.Errorf("the broker describes %d topics instead of one", len(resp.Topics))
	}
	got := resp.Topics[0]
	switch err := kerr.ErrorForCode(got.ErrorCode); {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return s.probeMissing(ctx, cl, name)
	case err != nil && kerr.IsRetriable(err):
		return nil, err
	case err != nil:
		return []string{fmt.Sprintf("topic %s cannot be described: %v", name, err)}, nil
	case got.AuthorizedOperations == unknownRights:
		return nil, nil
	}
	for right, bit := range rights {
		if got.AuthorizedOperations&bit == 0 {
			faults = append(faults, fmt.Sprintf("this user may not %s topic %s", right, name))
		}
	}
	slices.Sort(faults)
	return faults, nil
}

// probeMissing asks whether a topic could be made, without making it.
func (s *Sink) probeMissing(ctx context.Context, cl *kgo.Client, name string) ([]string, error) {
	partitions := s.opts.Partitions
	if partitions == 0 || name != s.opts.Topic {
		partitions = 1
	}
	made, err := kadm.NewClient(cl).ValidateCreateTopics(ctx, partitions, -1, nil, name)
	if err != nil {
		return nil, err
	}
	if err := made.Error(); err != nil {
		return []string{fmt.Sprintf("topic %s is missing and cannot be created: %v", name, err)}, nil
	}
	return nil, nil
}

// probeTransaction describes the transactional id; one that was never used is as
// good as any.
func (s *Sink) probeTransaction(ctx context.Context, cl *kgo.Client) ([]string, error) {
	for {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = []string{s.transactionalID()}
		resp, err := req.RequestWith(ctx, cl)
		if err == nil {
			for _, st := range resp.TransactionStates {
				err = kerr.ErrorForCode(st.ErrorCode)
			}
		}
		switch {
		case err == nil, errors.Is(err, kerr.TransactionalIDNotFound):
			return nil, nil
		case isAuthorization(err):
			return []string{fmt.Sprintf("transactional id %s: %v", s.transactionalID(), err)}, nil
		case !kerr.IsRetriable(err) || s.opts.Clock.Sleep(ctx, s.opts.Limits.BackoffMin) != nil:
			return nil, err
		}
	}
}
