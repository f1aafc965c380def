//! (matrix)
