//! Set-ups that lead elsewhere.
