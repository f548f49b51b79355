package dns

// BoundPackets makes the bound on questions over UDP one that a test can reach.
func (s *Server) BoundPackets(most int) {
	s.crowd.mu.Lock()
	defer s.crowd.mu.Unlock()
	s.crowd.packets.SetMost(most)
}

// Sources is how many sources are remembered for their questions over UDP.
func (s *Server) Sources() int {
	s.crowd.mu.Lock()
	defer s.crowd.mu.Unlock()
	return s.crowd.packets.Sources()
}
