//! `fancyindex`: lists that visitors sort.

use crate::harness::Site;

/// The names in a list, in its order.
fn names(page: &str) -> Vec<String> {
    page.split("title=\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

#[test]
fn lists_that_visitors_sort() {
    let server = Site::server(
        "fancyindex on; location /round/ { alias @DIR@/html/; fancyindex_exact_size off; fancyindex_default_sort size_desc; fancyindex_time_format %Y; }
         location /own/ { alias @DIR@/html/list/; fancyindex_header /part; fancyindex_footer foot.html local; }
         location /all/ { alias @DIR@/html/list/; fancyindex_show_dotfiles on; fancyindex_hide_parent_dir on; fancyindex_ignore '^b' 'txt$';
                          fancyindex_directories_first off; fancyindex_css_href /x.css; fancyindex_name_length 5; }
         location /part { return 200 '<b>head</b>'; }",
    )
    .file("foot.html", "<i>foot</i>")
    .file("html/list/b<&.txt", "0123456789")
    .file("html/list/a.txt", "0")
    .file("html/list/.hidden", "0")
    .file("html/list/long-name", "0123")
    .file("html/list/folder/x", "0")
    .file("html/big", vec![b'x'; 20_000])
    .start();
    let page = server.get("/list/").text();
    assert_eq!(names(&page), ["folder", "a.txt", "b&lt;&amp;.txt", "long-name"]);
    assert!(
        page.contains("<h1>Index of /list/</h1>")
            && page.contains("href=\"b%3C%26.txt\"")
            && page.contains("../\">Parent")
    );
    assert!(page.contains(">2026-Jan-01 00:00<"));
    assert_eq!(names(&server.get("/list/?C=N&O=D").text()), ["folder", "long-name", "b&lt;&amp;.txt", "a.txt"]);
    let by_size = server.get("/list/?C=S&O=D").text();
    assert_eq!(names(&by_size), ["folder", "b&lt;&amp;.txt", "long-name", "a.txt"]);
    // Directories keep the order.
    assert!(by_size.contains("href=\"folder/?C=S&amp;O=D\"") && by_size.contains("href=\"a.txt\""));
    let round = server.get("/round/").text();
    assert!(round.contains(">19.5 KiB<") && round.contains(">2026<"), "{round}");
    let own = server.get("/own/").text();
    assert!(own.starts_with("<b>head</b><table id=\"list\">") && own.ends_with("</table>\n<i>foot</i>"), "{own}");
    let all = server.get("/all/").text();
    assert_eq!(names(&all), [".hidden", "folder", "long-name"]);
    assert!(
        !all.contains("Parent directory") && all.contains("href=\"/x.css\"") && all.contains(">lo..&gt;</a>"),
        "{all}"
    );
    assert_eq!(server.get("/list/missing/").status, 404);
    assert!(server.connect().head("/list/").body.is_empty());
    // Whatever is asked for, nothing of it gets into the page.
    assert!(!server.get("/list/?C=N%22%3E%3Cscript%3E&O=%3Cscript%3E").text().contains("<script>"));
}
