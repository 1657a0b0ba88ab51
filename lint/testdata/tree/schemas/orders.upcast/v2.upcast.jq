.n |= tostring
