package status

import (
	"encoding/json"
	"net/http"
	"strconv"
)

func (s *Server) apiStatus(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, s.board.model(r.Context(), all))
}

// apiBatches takes query (a name; all queries without it) and limit.
func (s *Server) apiBatches(w http.ResponseWriter, r *http.Request) {
	most := batchesDefault
	if l := r.URL.Query().Get("limit"); l != "" {
		n, err := strconv.Atoi(l)
		if err != nil || n < 1 {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error": "limit is a number above 0"})
			return
		}
		most = min(n, batchesKept*max(len(s.board.o.Queries), 1))
	}
	name := r.URL.Query().Get("query")
	batches, unknown := s.board.Batches(name, most)
	if unknown {
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "there is no query " + strconv.Quote(name)})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"batches": list(batches)})
}

// probeAnswer is the body of /livez and /readyz.
type probeAnswer struct {
	OK      bool     `json:"ok"`
	Reasons []Reason `json:"reasons"`
}

func (s *Server) livez(w http.ResponseWriter, r *http.Request) {
	h := s.board.model(r.Context(), nothing).Health
	a := probeAnswer{OK: h.Live, Reasons: []Reason{}}
	for _, why := range h.Reasons {
		if why.Fatal {
			a.Reasons = append(a.Reasons, why)
		}
	}
	writeJSON(w, probeCode(a.OK), a)
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	h := s.board.model(r.Context(), lags).Health
	writeJSON(w, probeCode(h.Ready), probeAnswer{OK: h.Ready, Reasons: h.Reasons})
}

func probeCode(ok bool) int {
	if ok {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n'))
}
