package overview

// Lookup is the output of `neardns-agent query`: how a node's cache and kube-dns answer a query for one name.
type Lookup struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// Pod is the pod from whose network namespace the query was sent too. Path is the state of that pod's steering, with the reason.
	Pod  string `json:"pod,omitempty"`
	Path string `json:"path,omitempty"`
	// Cached is the state of the cache's entry before the query: "hit", "stale", "miss" or "no agent answers". Left is the number of
	// seconds until a hit's entry expires.
	Cached  string  `json:"cached"`
	Left    int     `json:"secondsLeft,omitempty"`
	Replies []Reply `json:"replies"`
}

// Reply is the answer of one server.
type Reply struct {
	From    string   `json:"from"` // pod, cache or kube-dns
	Server  string   `json:"server"`
	By      string   `json:"answeredBy"` // kernel, agent, kube-dns or none
	Code    string   `json:"code,omitempty"`
	TTL     uint32   `json:"ttl"` // lowest TTL in seconds of the answer and authority sections
	Records []string `json:"records,omitempty"`
	Millis  float64  `json:"milliseconds"`
	Error   string   `json:"error,omitempty"`
}
