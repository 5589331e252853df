<?php
// A guest book: one front controller, entries in a file. What a PHP application asks of the server: pretty addresses, forms, uploads,
// files that are served without PHP.
declare(strict_types=1);

const MAX_ENTRIES = 100;
const MAX_LENGTH = 500;

$file = (getenv('GUESTBOOK') ?: sys_get_temp_dir()) . '/guestbook.json';
$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);

/** Runs `$change` on the entries while nobody else does, and keeps what it gives back. */
function entries(string $file, ?callable $change = null): array
{
    $handle = fopen($file, 'c+');
    flock($handle, $change ? LOCK_EX : LOCK_SH);
    $entries = json_decode(stream_get_contents($handle) ?: '[]', true) ?: [];
    if ($change) {
        $entries = array_slice($change($entries), -MAX_ENTRIES);
        ftruncate($handle, 0);
        rewind($handle);
        fwrite($handle, json_encode($entries));
    }
    fclose($handle);
    return $entries;
}

if ($path === '/entries' && $_SERVER['REQUEST_METHOD'] === 'POST') {
    $text = trim((string) ($_POST['text'] ?? ''));
    if ($text === '' || strlen($text) > MAX_LENGTH) {
        http_response_code(422);
        exit("An entry has 1 to " . MAX_LENGTH . " bytes.\n");
    }
    entries($file, fn ($all) => [...$all, ['text' => $text, 'from' => $_SERVER['REMOTE_ADDR'], 'at' => time()]]);
    header('Location: /', true, 303);
    exit;
}
if ($path === '/upload' && $_SERVER['REQUEST_METHOD'] === 'POST') {
    $upload = $_FILES['file'] ?? null;
    header('Content-Type: application/json');
    if (!$upload || $upload['error'] !== UPLOAD_ERR_OK) {
        http_response_code(400);
    }
    exit(json_encode(['bytes' => $upload['size'] ?? 0, 'sha256' => $upload ? hash_file('sha256', $upload['tmp_name']) : null]) . "\n");
}
if ($path !== '/') {
    http_response_code(404);
    exit("There is nothing at " . htmlspecialchars($path) . "\n");
}
?>
<!doctype html>
<html lang="en">
<title>Guest book</title>
<link rel="stylesheet" href="/style.css">
<h1>Guest book</h1>
<form method="post" action="/entries"><input name="text" maxlength="500" required><button>Sign</button></form>
<ul>
<?php foreach (array_reverse(entries($file)) as $entry): ?>
<li><?= htmlspecialchars($entry['text']) ?> <small><?= date('Y-m-d H:i', $entry['at']) ?></small></li>
<?php endforeach ?>
</ul>
