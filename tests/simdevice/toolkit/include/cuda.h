/* Asked for by name only: the stand-in compiler reads no headers. */
