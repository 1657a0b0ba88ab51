package docstore

import "context"

// Flush writes the rows of all that was committed.
func (s *Store) Flush() error {
	for _, name := range s.names() {
		r, err := s.lockReader(name)
		if err != nil {
			return err
		}
		err = r.flush(context.Background())
		r.commit.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}
