/* Columns straight from the pages of a SQLite file; sqlite_pages.py calls it through ctypes.

   Only the plain case is read, as the Python module says. Whatever else is met, and whatever looks damaged,
   ends in -1, and SQLite is asked instead. Nothing that the file says is believed: every place is checked
   against the end of its page before it is read, and every number of rows against the caller's room.

   The format: https://sqlite.org/fileformat2.html, sections 1.6 (pages of a tree) and 2.1 (records). Its
   numbers begin with their highest byte. */

#define _FILE_OFFSET_BITS 64
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An open file of so many pages; the first `usable` bytes of each page hold content. */
struct file {
    int64_t descriptor;
    int64_t page;
    int64_t usable;
    int64_t pages;
};

/* Where the texts and blobs of a column go: one after the other into `content`, which has room for so many
   bytes. `end` takes where each ends in it, `kind` what it is. */
struct cells {
    int64_t *end;
    uint8_t *content;
    uint8_t *kind;
    int64_t room;
};

/* What is wanted of the columns of a table up to the last wanted one. For each there is its number among the
   wanted ones, or -1: first come `ints` columns of integers, with what stands for NULL and an array for the
   values of each, then columns of texts and blobs. */
struct wanted {
    int64_t columns;
    const int64_t *numbers;
    int64_t ints;
    const int64_t *nulls;
    int64_t **values;
    const struct cells *cells;
};

enum { INTERIOR = 5, LEAF = 13, DEEPEST = 20 };

/* So much is read at once: it stays in the second-level cache. Two pages of the largest size fit. */
enum { BLOCK = 1 << 17 };

/* An integer is loaded as a whole word, which may reach beyond the last page of a block. */
enum { WORD = 8 };

/* The least space that a row takes in a leaf page: its pointer, and four bytes. */
enum { LEAST_ROW = 6 };

/* The serial types of values. An odd type from 13 on is a text, an even one from 12 on a blob. */
enum { NULL_TYPE = 0, REAL = 7, ONE = 9, RESERVED = 10, BLOB = 12 };

/* What a value of a column of texts and blobs is. */
enum { IS_NULL = 0, IS_TEXT = 1, IS_BLOB = 2 };

/* The bytes of a value of each serial type below RESERVED. */
static const unsigned SIZES[RESERVED] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};

/* Read exactly `size` bytes. */
static int read_at(const struct file *file, uint8_t *content, int64_t size, int64_t offset)
{
    while (size > 0) {
        ssize_t got = pread((int)file->descriptor, content, (size_t)size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        content += got;
        size -= got;
        offset += got;
    }
    return 0;
}

/* Where a page begins in the file. Pages are counted from 1. */
static int64_t begin(const struct file *file, uint32_t page)
{
    return ((int64_t)page - 1) * file->page;
}

static uint32_t two_bytes(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

static uint32_t four_bytes(const uint8_t *at)
{
    return two_bytes(at) << 16 | two_bytes(at + 2);
}

static uint64_t eight_bytes(const uint8_t *at)
{
    return (uint64_t)four_bytes(at) << 32 | four_bytes(at + 4);
}

/* Append the children of an interior page: one before the key of each cell, and the right-most. */
static int64_t append_children(const struct file *file, const uint8_t *page, uint32_t *children, int64_t count)
{
    int64_t cells = two_bytes(page + 3);
    if (page[0] != INTERIOR || cells == 0 || 12 + 2 * cells > file->usable || count + cells + 1 > file->pages)
        return -1;
    for (int64_t i = 0; i <= cells; i++) {
        int64_t place = i < cells ? (int64_t)two_bytes(page + 12 + 2 * i) : 8;
        if (place + 4 > file->usable)
            return -1;
        uint32_t child = four_bytes(page + place);
        /* The first page holds the schema, and is no other table's. */
        if (child < 2 || child > file->pages)
            return -1;
        children[count++] = child;
    }
    return count;
}

/* Find the leaf pages of a table in the order of its rows.

   Both arrays have room for all pages of the file; the second is used meanwhile. Returns how many leaf pages
   there are, or -1. All are equally deep: level by level, a page is replaced by its children. */
int64_t hpcprof_leaves(const struct file *file, int64_t root, uint32_t *leaves, uint32_t *children)
{
    uint8_t *page = malloc((size_t)file->page);
    int64_t count = 1, found = -1;
    if (page == NULL || root < 2 || root > file->pages)
        goto done;
    leaves[0] = (uint32_t)root;
    for (int depth = 0; depth < DEEPEST; depth++) {
        if (read_at(file, page, file->page, begin(file, leaves[0])))
            goto done;
        if (page[0] == LEAF) {
            found = count;
            goto done;
        }
        int64_t next = 0;
        for (int64_t i = 0; i < count; i++) {
            if (read_at(file, page, file->page, begin(file, leaves[i])))
                goto done;
            next = append_children(file, page, children, next);
            if (next < 0)
                goto done;
        }
        memcpy(leaves, children, (size_t)next * sizeof *leaves);
        count = next;
    }
done:
    free(page);
    return found;
}

/* Decode a number of variable length: seven bits of each byte, the high bit says that another follows. What
   takes more than three bytes is larger than any page. Returns what is behind it, or NULL. */
static const uint8_t *number(const uint8_t *at, const uint8_t *end, int64_t *value)
{
    int64_t decoded = 0;
    for (int i = 0; i < 3 && at < end; i++) {
        decoded = decoded << 7 | (*at & 127);
        if (*at++ < 128) {
            *value = decoded;
            return at;
        }
    }
    return NULL;
}

/* Return what is behind a number of up to nine bytes, or NULL. The ninth is the last whatever it is. */
static const uint8_t *after_number(const uint8_t *at, const uint8_t *end)
{
    for (int i = 1; at < end; i++)
        if (*at++ < 128 || i == 9)
            return at;
    return NULL;
}

/* Return the signed integer of 1 to 8 bytes. */
static int64_t integer(const uint8_t *at, unsigned size)
{
    uint64_t word = eight_bytes(at) >> (64 - 8 * size);
    uint64_t sign = (uint64_t)1 << (8 * size - 1);
    int64_t value;
    word = (word ^ sign) - sign;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Store a text, a blob or NULL of a row behind those of the rows before it. */
static int store_cell(const struct cells *cells, int64_t row, int64_t type, const uint8_t *value, int64_t bytes)
{
    int64_t used = row ? cells->end[row - 1] : 0;
    if ((type != NULL_TYPE && type < BLOB) || bytes > cells->room - used)
        return -1;
    memcpy(cells->content + used, value, (size_t)bytes);
    cells->end[row] = used + bytes;
    cells->kind[row] = type == NULL_TYPE ? IS_NULL : type & 1 ? IS_TEXT : IS_BLOB;
    return 0;
}

/* Store the wanted values of the row whose cell begins at `at`.

   A cell is the size of its record, the row's number and the record. That is the size of its header, the
   serial types of the values, and the values. A long record goes on in other pages, and is not read; nor is
   one with fewer values than columns: it was written before its table had them all. */
static int store_row(const uint8_t *at, const uint8_t *page_end, int64_t usable, const struct wanted *wanted,
                     int64_t row)
{
    int64_t size, header;
    at = number(at, page_end, &size);
    if (at == NULL || (at = after_number(at, page_end)) == NULL || size > usable - 35 || size > page_end - at)
        return -1;
    const uint8_t *record = at, *end = at + size;
    at = number(at, end, &header);
    if (at == NULL || header > size)
        return -1;
    const uint8_t *value = record + header, *header_end = value;
    for (int64_t i = 0; i < wanted->columns; i++) {
        int64_t type, column = wanted->numbers[i];
        at = number(at, header_end, &type);
        if (at == NULL || type == RESERVED || type == RESERVED + 1)
            return -1;
        int64_t bytes = type < RESERVED ? (int64_t)SIZES[type] : (type - BLOB) / 2;
        if (bytes > end - value)
            return -1;
        if (column >= wanted->ints) {
            if (store_cell(&wanted->cells[column - wanted->ints], row, type, value, bytes))
                return -1;
        } else if (column >= 0) {
            if (type >= RESERVED || type == REAL)
                return -1;
            wanted->values[column][row] = bytes               ? integer(value, (unsigned)bytes)
                                          : type == NULL_TYPE ? wanted->nulls[column]
                                                              : type == ONE;
        }
        value += bytes;
    }
    /* Where these were all values, nothing follows the last. */
    return at == header_end && value != end ? -1 : 0;
}

/* Store the wanted values of the rows of leaf pages, from the beginning of the arrays on.

   The arrays have room for so many rows. Returns how many there are, -1 where only SQLite can read them, or
   -2 where there is too little room. */
int64_t hpcprof_store(const struct file *file, const uint32_t *leaves, int64_t count, int64_t room,
                      const struct wanted *wanted)
{
    int64_t row = 0, found = -1, most = BLOCK / file->page, at_once = count < most ? count : most;
    uint8_t *block = calloc(1, (size_t)(at_once * file->page) + WORD);
    if (block == NULL)
        return -1;
    for (int64_t i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count && next - i < at_once && leaves[next] == leaves[next - 1] + 1; next++)
            ;
        if (read_at(file, block, (next - i) * file->page, begin(file, leaves[i])))
            goto done;
        for (int64_t j = i; j < next; j++) {
            const uint8_t *page = block + (j - i) * file->page, *end = page + file->usable;
            int64_t rows = two_bytes(page + 3);
            /* Only a table without rows has a page without rows. */
            if (page[0] != LEAF || (rows == 0 && count > 1) || 8 + rows * LEAST_ROW > file->usable)
                goto done;
            if (rows > room - row) {
                found = -2;
                goto done;
            }
            for (int64_t k = 0; k < rows; k++, row++) {
                uint32_t cell = two_bytes(page + 8 + 2 * k);
                if (cell >= file->usable || store_row(page + cell, end, file->usable, wanted, row))
                    goto done;
            }
        }
    }
    found = row;
done:
    free(block);
    return found;
}
