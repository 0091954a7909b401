/* Reads a SQLite file again and again, each time with other bytes of it changed: FILE ROOT COLUMNS CASES SEED.

   Built with the compiler's sanitizers, which end it where memory is touched that is not the reader's. Prints
   how many of the cases were read. */

#include "../../hpcprof/profiles/readers/nsys/sqlite_pages.c"

#include <stdio.h>

enum { MOST_COLUMNS = 64 };

static uint64_t state;

/* A number below `bound`; any generator will do (xorshift). */
static int64_t below(int64_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)bound);
}

/* Change a few bytes, most often where they say where others are. */
static void damage(uint8_t *content, const struct file *file)
{
    static const uint8_t odd[] = {0, 1, 2, 5, 10, 13, 0x7f, 0x80, 0x81, 0xfe, 0xff};
    for (int64_t left = 1 + below(6); left > 0; left--) {
        uint8_t *page = content + file->page * below(file->pages);
        int64_t place = below(file->page);
        int64_t cells = two_bytes(page + 3);
        switch (below(5)) {
        case 0: /* the header and the pointers to cells */
            place = below(cells ? 8 + 2 * cells : 8) % file->page;
            break;
        case 1: /* the beginning of a cell */
            if (cells)
                place = two_bytes(page + (8 + 2 * below(cells)) % (file->page - 1)) + below(24);
            place %= file->page;
            break;
        case 2: /* another page instead */
            memmove(page, content + file->page * below(file->pages), (size_t)file->page);
            break;
        default:
            break;
        }
        page[place] = below(2) ? (uint8_t)below(256) : odd[below(sizeof odd)];
    }
}

/* Return how many rows leaf pages say that they have. */
static int64_t rows_of(const struct file *file, const uint32_t *leaves, int64_t count)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++) {
        uint8_t header[5];
        if (!read_at(file, header, sizeof header, begin(file, leaves[i])))
            rows += two_bytes(header + 3);
    }
    return rows;
}

/* Read some columns into arrays of exactly the size that they need; say whether they could be read. */
static int read_columns(const struct file *file, int64_t root, int64_t table_columns)
{
    int64_t numbers[MOST_COLUMNS], nulls[MOST_COLUMNS], *values[MOST_COLUMNS];
    struct cells cells[MOST_COLUMNS];
    uint32_t *leaves = malloc((size_t)file->pages * sizeof *leaves);
    uint32_t *children = malloc((size_t)file->pages * sizeof *children);
    int64_t count = hpcprof_leaves(file, root, leaves, children);
    int64_t columns = 1 + below(table_columns), ints = 0, others = 0;
    /* Every third column holds texts and blobs, and most often it is read as such. */
    for (int64_t i = 0; i < columns; i++) {
        int64_t is_int = (i % 3 != 2) != !below(200);
        nulls[i] = -1;
        numbers[i] = i != columns - 1 && below(2) ? -1 : is_int ? ints++ : MOST_COLUMNS + others++;
    }
    for (int64_t i = 0; i < columns; i++)
        if (numbers[i] >= MOST_COLUMNS)
            numbers[i] += ints - MOST_COLUMNS;
    /* Page by page too: what is behind a page is then no memory of the reader's. */
    int64_t step = below(2) || count < 1 ? count : 1, failed = count < 0;
    for (int64_t i = 0; i < count; i += step) {
        int64_t room = rows_of(file, leaves + i, step), bytes = step * file->page;
        room = below(50) ? room : below(room + 1);
        bytes = below(50) ? bytes : below(bytes);
        for (int64_t j = 0; j < ints; j++)
            values[j] = malloc((size_t)room * sizeof **values);
        for (int64_t j = 0; j < others; j++) {
            int64_t *end = malloc((size_t)room * sizeof *end);
            cells[j] = (struct cells){end, malloc((size_t)bytes), malloc((size_t)room), bytes};
        }
        struct wanted wanted = {columns, numbers, ints, nulls, values, cells};
        failed |= hpcprof_store(file, leaves + i, step, room, &wanted) < 0;
        for (int64_t j = 0; j < ints; j++)
            free(values[j]);
        for (int64_t j = 0; j < others; j++) {
            free(cells[j].end);
            free(cells[j].content);
            free(cells[j].kind);
        }
    }
    free(leaves);
    free(children);
    return !failed;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    FILE *given = fopen(argv[1], "rb"), *copy = tmpfile();
    int64_t root = atoll(argv[2]), columns = atoll(argv[3]), cases = atoll(argv[4]), read = 0;
    if (given == NULL || copy == NULL || columns > MOST_COLUMNS || fseek(given, 0, SEEK_END))
        return 2;
    int64_t size = ftell(given);
    uint8_t *whole = malloc((size_t)size), *content = malloc((size_t)size);
    rewind(given);
    if (fread(whole, 1, (size_t)size, given) != (size_t)size)
        return 2;
    state = 2 * (uint64_t)atoll(argv[5]) + 1;
    int64_t page = two_bytes(whole + 16) == 1 ? 65536 : two_bytes(whole + 16);
    for (int64_t i = 0; i < cases; i++) {
        struct file file = {fileno(copy), page, page - below(2) * below(32), size / page};
        memcpy(content, whole, (size_t)size);
        damage(content, &file);
        if (pwrite(fileno(copy), content, (size_t)size, 0) != size)
            return 2;
        /* A file may also have become shorter a moment ago. */
        if (!below(50) && ftruncate(fileno(copy), below(size)))
            return 2;
        read += read_columns(&file, root, columns);
    }
    printf("%lld of %lld\n", (long long)read, (long long)cases);
    fclose(given);
    fclose(copy);
    free(whole);
    free(content);
    return 0;
}
