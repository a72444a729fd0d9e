# Earlier releases always made the file storage.

moved {
  from = module.home
  to   = module.home[0]
}
