//! Secrets that nobody needs any more are overwritten. Knows nothing of what they are for.

/// Overwrites a secret.
pub fn wipe(secret: &mut [u8]) {
    secret.fill(0);
    // What is seen by nobody else would not be written.
    std::hint::black_box(secret);
}
