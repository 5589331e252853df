use super::table::ENDPOINTS;

#[test]
fn endpoints_do_not_hide_each_other() {
    for (i, e) in ENDPOINTS.iter().enumerate() {
        assert!(ENDPOINTS[i + 1..].iter().all(|other| other.path != e.path), "{} is there twice", e.path);
    }
}
