package replay

import "fmt"

// Script is a stream with an end, segment by segment.
type Script []Segment

// Segment is a run of frames of one kind.
type Segment struct {
	// Kind is one of the Segment… words.
	Kind string `json:"kind"`
	// Count is the number of loops (SegmentLoops) or of events; a resend ignores
	// it.
	Count int64 `json:"count,omitempty"`
	// Loop is the loop that a resend repeats.
	Loop int64 `json:"loop,omitempty"`
}

// The kinds of segments.
const (
	// SegmentLoops continues with the next loops of base events.
	SegmentLoops = "loops"
	// SegmentResend sends a loop that has been sent once more.
	SegmentResend = "resend"
	// SegmentViolations, SegmentCanaries and SegmentLate are specials.
	SegmentViolations = "violations"
	SegmentCanaries   = "canaries"
	SegmentLate       = "late"
)

// scriptFramesMax bounds a script: each frame takes 24 bytes.
const scriptFramesMax = 20_000_000

// ReferenceScript is the scenario of the reference: 50 loops with 25 contract
// violations among them, loop 0 once more, and in the end 100 events that are
// half an hour late. 20,500 frames meet the contract; silver ends with 9,800
// rows.
func ReferenceScript() Script {
	const (
		loops      = 50
		violations = 25
		late       = 100
	)
	var s Script
	for range violations {
		s = append(s, Segment{Kind: SegmentLoops, Count: loops / violations}, Segment{Kind: SegmentViolations, Count: 1})
	}
	return append(s, Segment{Kind: SegmentResend, Loop: 0}, Segment{Kind: SegmentLate, Count: late})
}

func (s Script) validate() []error {
	var errs []error
	var frames, loops int64
	for i, seg := range s {
		n := seg.Count
		switch seg.Kind {
		case SegmentLoops:
			loops += seg.Count
			n = min(seg.Count, scriptFramesMax) * SampleSize
		case SegmentResend:
			n = SampleSize
			if seg.Loop < 0 || seg.Loop >= loops {
				errs = append(errs, fmt.Errorf("segment %d resends loop %d, which has not been sent", i+1, seg.Loop))
			}
		case SegmentViolations, SegmentCanaries, SegmentLate:
		default:
			errs = append(errs, fmt.Errorf("segment %d is of no known kind: %q", i+1, seg.Kind))
		}
		if n < 0 {
			errs = append(errs, fmt.Errorf("segment %d has the count %d", i+1, seg.Count))
		}
		frames += min(max(n, 0), scriptFramesMax+1)
	}
	if frames > scriptFramesMax {
		errs = append(errs, fmt.Errorf("the script has more than %d frames", scriptFramesMax))
	}
	return errs
}

// frames lays the script out.
func (s Script) frames() []frame {
	if len(s) == 0 {
		return nil
	}
	out := []frame{}
	next := int64(0)
	for _, seg := range s {
		switch seg.Kind {
		case SegmentLoops:
			for range seg.Count * SampleSize {
				out = append(out, frame{Base, next, next})
				next++
			}
		case SegmentResend:
			for i := range int64(SampleSize) {
				out = append(out, frame{Duplicate, seg.Loop*SampleSize + i, next})
			}
		default:
			class := map[string]Class{SegmentViolations: ContractViolation, SegmentCanaries: Canary, SegmentLate: Late}[seg.Kind]
			for range seg.Count {
				out = append(out, frame{class, int64(len(out)), next})
			}
		}
	}
	return out
}
