package app

import "promethean/partition"

// openPartitions starts what divides partitioned groups among their members, here
// and at other hubs.
func (s *server) openPartitions() (err error) {
	o := partition.Options{Self: s.hub.Engine().Owner(), Logger: s.log}
	if s.cluster != nil {
		o.Hubs = s.cluster
	}
	s.parts, err = partition.New(s.hub, o)
	return err
}
