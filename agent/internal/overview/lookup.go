package overview

// Lookup is what `neardns-agent query` shows: one name, as the cache of a node and kube-dns answer it.
type Lookup struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// Pod is the pod from whose network namespace the name was queried, too; Path is how that pod's queries go, and why.
	Pod  string `json:"pod,omitempty"`
	Path string `json:"path,omitempty"`
	// Cached is the cache's entry before the query was sent, "hit", "stale" or "miss", and Left its seconds until it expires.
	Cached  string  `json:"cached"`
	Left    int     `json:"secondsLeft,omitempty"`
	Replies []Reply `json:"replies"`
}

// Reply is one answer.
type Reply struct {
	From    string   `json:"from"` // pod, cache or kube-dns
	Server  string   `json:"server"`
	By      string   `json:"answeredBy"` // kernel, agent or kube-dns
	Code    string   `json:"code,omitempty"`
	TTL     uint32   `json:"ttl"` // the lowest one
	Records []string `json:"records,omitempty"`
	Millis  float64  `json:"milliseconds"`
	Error   string   `json:"error,omitempty"`
}
