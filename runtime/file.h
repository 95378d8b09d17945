/* file.h - files as the runtime uses them: read by mapping, written beside their place and then renamed. */
#ifndef TRAINC_FILE_H
#define TRAINC_FILE_H
#include "fail.h"
#include <stdbool.h>
typedef struct FileMap { const unsigned char *bytes; uint64_t n; } FileMap;  /* bytes is not NULL where the map is open, even for n = 0 */
/* file_map - maps a regular file for reading. Errors: `status` with the system's reason. Owner: caller, file_unmap. */
trainc_status file_map(FileMap *, const char *path, trainc_status status, Fail *);
void file_unmap(FileMap *);

typedef struct FileOut { int fd; char path[4096], tmp[4200]; } FileOut;
/* file_create - opens PATH.tmp-XXXXXX; file_commit flushes it to disk and renames it to PATH, file_abandon removes it. A crash leaves
 *   the old file or the new one. Errors: TRAINC_BAD_DATA. */
trainc_status file_create(FileOut *, const char *path, Fail *);
trainc_status file_write(FileOut *, const void *, uint64_t bytes, Fail *);
trainc_status file_commit(FileOut *, Fail *);
void file_abandon(FileOut *);

/* folder_begin - makes an empty folder beside `path` (its name into tmp); folder_commit flushes it and swaps it with whatever stands at
 *   `path`, then removes that. `marker` must lie in a folder that is replaced, so that nothing else is ever removed. */
trainc_status folder_begin(const char *path, const char *marker, char *tmp, size_t cap, Fail *);
trainc_status folder_commit(const char *tmp, const char *path, Fail *);
void folder_remove(const char *path);   /* the regular files in it, then itself */
bool path_is_folder(const char *path);
#endif
